-- What an operator asks of the ledger.

-- Runs a job again. One that was given up is enqueued anew, never revived: whoever still works on
-- the old one finds its row gone. One that waits for its time is ready at once. `verdict`:
--   retried    `job_id` is the new job
--   hastened   it may run now
--   running    a worker holds it
--   ended      it was done, superseded or requeued
--   erasing    an erase of its scope stands
--   unknown    there is no such job, or no longer the turn that it was for
create or replace function afterturn.retry_job(
    p_id bigint, out verdict text, out job_id bigint, out job_kind text)
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    at timestamptz := afterturn.clock();
    job afterturn.jobs;
begin
    perform afterturn.require_read_committed();
    select * into job from afterturn.jobs j where j.id = p_id;
    verdict := case when job.id is null then 'unknown'
        when job.finished_at is not null and job.outcome <> 'dead' then 'ended' end;
    job_kind := job.kind;
    if verdict is not null then
        return;
    end if;
    if job.finished_at is null then
        update afterturn.jobs j set ready_at = at, ring_at = at
        where j.id = p_id and j.finished_at is null and j.lease_token is null;
        job_id := p_id;
        verdict := case when found then 'hastened' else 'running' end;
        return;
    end if;

    if afterturn.erasing(afterturn.covering(job.path)) then
        verdict := 'erasing';
        return;
    end if;
    perform afterturn.lock_shared(array[job.path]);
    perform from afterturn.jobs j where j.id = p_id and j.outcome = 'dead' for update;
    if not found then
        verdict := 'unknown';
        return;
    end if;
    if afterturn.erasing(afterturn.covering(job.path)) then
        verdict := 'erasing';
        return;
    end if;
    if job.kind = 'embed' then
        delete from afterturn.jobs j where j.id = p_id;
        perform afterturn.enqueue_embed(array[job.path]);
        select j.id into job_id from afterturn.jobs j
        where j.path = job.path and j.kind = 'embed' and j.finished_at is null
            and j.lease_token is null;
        verdict := 'retried';
        return;
    end if;
    -- The turn was acknowledged and no erase took it, or its row would be gone: so it gets the
    -- numbers that hold now, should an erase elsewhere have moved one above it meanwhile.
    update afterturn.turns t
    set token = afterturn.token_of(afterturn.covering(t.path)), outcome = 'waiting', reason = '',
        extracted = case when job.kind = 'record' then t.extracted end,
        extracted_at = case when job.kind = 'record' then t.extracted_at end
    where t.path = job.path and t.turn_id = job.turn_id;
    verdict := case when found then 'retried' else 'unknown' end;
    delete from afterturn.jobs j where j.id = p_id;
    if verdict = 'retried' then
        insert into afterturn.jobs (kind, path, turn_id, ready_at, ring_at, created_at)
        values (job.kind, job.path, job.turn_id, at, at, at) returning id into job_id;
    end if;
end $$;
