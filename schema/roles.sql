-- Three roles without a login, to be granted to those who have one:
--
--   create role web login password '…';  grant afterturn_app to web;
--
--   afterturn_app      a calling process: turns, reading, flush, forget. A caller that waits runs its
--                      job itself, so it may change and delete what jobs change and delete.
--   afterturn_worker   what a worker does: the same, and it settles which embedder is in use.
--   afterturn_auditor  the erase log, the ledger's state and counts; no text, no readable path.
--
-- None of them may change a table, a function, the erase log's entries, the key of the hashes, or
-- empty a table; that is for the owner, who migrates. Safe to repeat; `afterturn migrate` repeats it
-- after each change where the roles exist.
do $roles$
declare
    wanted text;
begin
    foreach wanted in array array['afterturn_app', 'afterturn_worker', 'afterturn_auditor'] loop
        begin
            if not exists (select from pg_roles where rolname = wanted) then
                execute format('create role %I nologin', wanted);
            end if;
        exception when duplicate_object or unique_violation then
            null;  -- somebody else made it meanwhile: roles belong to the whole server
        end;
    end loop;
end $roles$;

revoke all on schema afterturn from public;
grant usage on schema afterturn to afterturn_app, afterturn_worker, afterturn_auditor;

grant select on all tables in schema afterturn to afterturn_app, afterturn_worker;
grant insert, update, delete on afterturn.turns, afterturn.memories, afterturn.memory_sources,
    afterturn.fact_statements, afterturn.token_usage, afterturn.jobs, afterturn.erase_intents,
    afterturn.schedules, afterturn.probes
    to afterturn_app, afterturn_worker;
-- Numbers only grow: no role takes them away.
grant insert, update on afterturn.scope_generations, afterturn.erase_log_heads
    to afterturn_app, afterturn_worker;
grant insert on afterturn.erase_log to afterturn_app, afterturn_worker;
grant update (embedder_model, embedder_dim) on afterturn.installation to afterturn_worker;

grant select on afterturn.migrations, afterturn.installation, afterturn.scope_generations,
    afterturn.erase_log, afterturn.erase_log_heads, afterturn.probes
    to afterturn_auditor;
grant select (id, kind, path_key, attempts, lease_token, ready_at, ring_at, blocked_by, releasing,
        counts, receipt, created_at, finished_at, outcome, reason)
    on afterturn.jobs to afterturn_auditor;
grant select (job_id) on afterturn.erase_intents to afterturn_auditor;
grant select (pending) on afterturn.memories to afterturn_auditor;
grant select (calls, prompt_tokens, completion_tokens) on afterturn.token_usage
    to afterturn_auditor;
grant select (id, kind, path_key, layer, older_seconds, daily_at, zone, is_default, due_at,
        created_at, ran_at, job_id, ended_at, outcome)
    on afterturn.schedules to afterturn_auditor;
