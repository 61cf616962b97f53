-- What beat looks for: jobs whose ring was lost or whose lease ran out, and ended jobs whose waiters
-- nobody has looked at yet (`ended`). One partial index holds just these, so that an idle system
-- costs one probe of it a tick, whatever else is in the ledger. A row without a job says that a
-- schedule is due, so that nobody has to ask for these apart.
create or replace function afterturn.sweep(p_limit integer, p_again interval)
returns table (kind text, job_id bigint, ended boolean)
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
declare
    at timestamptz := afterturn.clock();
begin
    return query
    update afterturn.jobs j set ring_at = at + p_again
    where j.id = any(array(
        select q.id from afterturn.jobs q
        where q.blocked_by is null and (q.finished_at is null or q.releasing) and q.ring_at <= at
        order by q.ring_at limit p_limit for update skip locked))
    returning j.kind, j.id, j.finished_at is not null;
    if afterturn.schedule_is_due() then
        return query select null::text, null::bigint, false;
    end if;
end $$;

-- Gives up on jobs whose last attempt's lease ran out, so that one that kills its workers is seen to
-- end. (A claim by id does the same, unseen, should it come before the sweep.)
create or replace function afterturn.bury_lost(p_ids bigint[], p_max_attempts integer)
returns table (job_id bigint, kind text)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    spent afterturn.jobs;
begin
    for spent in
        select * from afterturn.jobs j
        where j.id = any(p_ids) and j.kind in ('record', 'extract', 'embed')
            and j.finished_at is null and j.lease_token is not null
            and j.ready_at <= afterturn.clock() and j.attempts >= p_max_attempts
        order by j.id for update skip locked
    loop
        perform afterturn.end_turn_job(spent.id, 'dead', 'worker lost');
        return query select spent.id, spent.kind;
    end loop;
end $$;

-- Lets go of turn jobs whose lease ran out, but for suspects: from now on they wait like any other,
-- so that a lost worker's turns are taken in batches and not ring by ring. Should it wake, its apply
-- is refused.
create or replace function afterturn.free_lost(p_ids bigint[], p_max_attempts integer)
returns integer
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    freed integer;
begin
    update afterturn.jobs j set lease_token = null
    where j.id = any(array(
        select q.id from afterturn.jobs q
        where q.id = any(p_ids) and q.kind in ('record', 'extract') and q.finished_at is null
            and q.lease_token is not null and q.ready_at <= afterturn.clock()
            and not afterturn.is_suspect(q.attempts, p_max_attempts)
        order by q.id for update skip locked));
    get diagnostics freed = row_count;
    return freed;
end $$;

-- Rows of jobs that ended long ago. Dead ones stay until somebody looks.
create or replace function afterturn.prune_jobs(p_older interval, p_limit integer)
returns integer
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    gone integer;
begin
    delete from afterturn.jobs j where j.id = any(array(
        select q.id from afterturn.jobs q
        where q.finished_at < afterturn.clock() - p_older and not q.releasing
            and q.outcome in ('done', 'superseded', 'requeued')
        limit p_limit for update skip locked));
    get diagnostics gone = row_count;
    return gone;
end $$;

-- The model whose vectors this database holds; the first one to ask is it.
create or replace function afterturn.claim_embedder(
    p_model text, p_dim integer, out model text, out dim integer)
language plpgsql set plan_cache_mode = force_generic_plan as $$
begin
    update afterturn.installation i set embedder_model = p_model, embedder_dim = p_dim
    where i.embedder_model is null;
    select i.embedder_model, i.embedder_dim into model, dim from afterturn.installation i;
end $$;
