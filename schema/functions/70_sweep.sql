-- What beat looks for: jobs whose ring was lost or whose lease ran out, jobs whose blocker ended,
-- finished rows past their time. An idle system costs one probe of a partial index each.

create or replace function afterturn.sweep_rings(p_limit integer, p_again interval)
returns table (kind text, job_id bigint)
language sql as $$
    update afterturn.jobs j set ring_at = afterturn.clock() + p_again
    where j.id = any(array(
        select q.id from afterturn.jobs q
        where q.kind in ('record', 'extract', 'embed', 'flush', 'forget', 'expire')
            and q.finished_at is null and q.blocked_by is null and q.ring_at <= afterturn.clock()
        order by q.ring_at limit p_limit for update skip locked))
    returning j.kind, j.id
$$;

create or replace function afterturn.sweep_releasing(p_limit integer) returns setof bigint
language sql stable as $$
    select j.id from afterturn.jobs j where j.releasing and j.finished_at is not null limit p_limit
$$;

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
