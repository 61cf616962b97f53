-- Lifecycle jobs: flush, forget, expire. Jobs whose scopes overlap take effect in the order of
-- their ids, which is the order of their commits; the others run side by side.

-- The youngest unfinished job that has to end before the one with this id, kind and scope; null
-- when it may run. A forget does not wait for flushes it covers: it supersedes them.
create or replace function afterturn.blocker(p_id bigint, p_kind text, p_path text)
returns bigint
language sql stable as $$
    -- Materialized: else the planner looks for the youngest by walking the ledger backwards.
    with earlier as materialized (
        select j.id from afterturn.jobs j
        where j.finished_at is null and j.kind in ('flush', 'forget', 'expire')
            and j.path = any(trim_array(afterturn.covering(p_path), 1)) and j.id < p_id
        union all
        select j.id from afterturn.jobs j
        where j.finished_at is null and j.kind in ('flush', 'forget', 'expire')
            and j.path >= p_path and j.path < afterturn.under_end(p_path) and j.id < p_id
            and not (p_kind = 'forget' and j.kind = 'flush'))
    select max(e.id) from earlier e
$$;

-- The same for a job as it stands. A named forget takes no flush's rows as a whole, so it waits like
-- any other job.
create or replace function afterturn.blocker_of(p_id bigint) returns bigint
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
begin
    return (
        select afterturn.blocker(j.id,
            case when j.request ? 'named' then 'named' else j.kind end, j.path)
        from afterturn.jobs j where j.id = p_id);
end $$;

create or replace function afterturn.set_blocker(p_id bigint, p_blocker bigint) returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
begin
    update afterturn.jobs j
    set blocked_by = p_blocker,
        ring_at = case when p_blocker is null then afterturn.clock() else j.ring_at end
    where j.id = p_id and j.blocked_by is distinct from p_blocker;
end $$;

-- Points a new job at its blocker. The share lock on the blocker's row makes its end wait for us or
-- us for its end: without it the wake-up could be lost. Returns the blocker, if any.
create or replace function afterturn.block(p_id bigint) returns bigint
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    found_blocker bigint;
begin
    loop
        found_blocker := afterturn.blocker_of(p_id);
        exit when found_blocker is null;
        perform from afterturn.jobs j where j.id = found_blocker and j.finished_at is null
            for share;
        exit when found;
    end loop;
    perform afterturn.set_blocker(p_id, found_blocker);
    return found_blocker;
end $$;

-- Adds a job to the ledger. Takes lane locks: the last thing a transaction may do. A flush that
-- already waits last in its lane, unclaimed, is reused; its row lock lasts until we commit.
create or replace function afterturn.enqueue_lifecycle(
    p_kind text, p_path text, p_request jsonb, p_ring_after interval,
    out job_id bigint, out blocked boolean, out reused boolean)
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    at timestamptz := afterturn.clock();
    last_job bigint;
begin
    perform afterturn.require_read_committed();
    perform afterturn.require_durable_commit();
    perform afterturn.lock_lane(p_path);
    reused := false;
    if p_kind = 'flush' then
        last_job := afterturn.blocker(9223372036854775807, 'flush', p_path);
        select j.id, j.blocked_by is not null into job_id, blocked
        from afterturn.jobs j
        where j.id = last_job and j.kind = 'flush' and j.path = p_path
            and j.finished_at is null and j.lease_token is null and j.attempts = 0
        for update;
        if found then
            reused := true;
            return;
        end if;
    end if;
    insert into afterturn.jobs (kind, path, request, ready_at, ring_at, created_at)
    values (p_kind, p_path, p_request, at, at + p_ring_after, at)
    returning id into job_id;
    blocked := afterturn.block(job_id) is not null;
    if p_kind = 'forget' then
        insert into afterturn.erase_intents (path, job_id) values (p_path, job_id);
    end if;
end $$;

-- Leases one lifecycle job if it may run now. A flush or expiry that has failed before yields to
-- an erase that waits for it: it goes to the tail of its lane (`verdict` requeued, `successor` its id),
-- or ends (superseded), or waits a moment (busy).
create or replace function afterturn.claim_lifecycle(
    p_id bigint, p_lease interval, out verdict text, out kind text, out path text,
    out lease uuid, out attempts integer, out request jsonb, out counts jsonb,
    out created_at timestamptz, out successor bigint)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    job afterturn.jobs;
begin
    -- A claim that a crash takes back is claimed again.
    perform set_config('synchronous_commit', 'off', true);
    select * into job from afterturn.jobs j
    where j.id = p_id and j.kind in ('flush', 'forget', 'expire') and j.finished_at is null
        and j.blocked_by is null and j.ready_at <= afterturn.clock()
    for update skip locked;
    if not found then
        verdict := 'busy';
        return;
    end if;
    if job.kind <> 'forget' and job.attempts > 0 and afterturn.erase_waits(job.id, job.path) then
        successor := afterturn.requeue(job.id);
        verdict := coalesce(afterturn.outcome_of(job.id), 'busy');
        return;
    end if;
    update afterturn.jobs j
    set lease_token = gen_random_uuid(), attempts = j.attempts + 1,
        ready_at = afterturn.clock() + p_lease, ring_at = afterturn.clock() + p_lease
    where j.id = p_id
    returning 'claimed', j.kind, j.path, j.lease_token, j.attempts, j.request, j.counts,
        j.created_at
    into verdict, kind, path, lease, attempts, request, counts, created_at;
end $$;

-- Whether a younger erase overlaps the scope.
create or replace function afterturn.erase_waits(p_id bigint, p_path text) returns boolean
language sql stable as $$
    select exists (select from afterturn.erase_intents i
            where i.path = any(afterturn.covering(p_path)) and i.job_id > p_id)
        or exists (select from afterturn.erase_intents i
            where i.path >= p_path and i.path < afterturn.under_end(p_path) and i.job_id > p_id)
$$;

-- Ends a lifecycle job whose row the caller has locked. `releasing` stays set until those that
-- waited for it have been looked at anew: by who ended it or, if that process dies, by the sweep.
-- (Where many wait for one job the planner believes that many wait for any, and would look for
-- them by reading the whole ledger.)
create or replace function afterturn.end_lifecycle(
    p_id bigint, p_outcome text, p_receipt jsonb) returns void
language sql set enable_seqscan = off as $$
    update afterturn.jobs j
    set finished_at = afterturn.clock(), outcome = p_outcome, lease_token = null,
        blocked_by = null, receipt = p_receipt, reason = '',
        ring_at = afterturn.clock() + interval '2 seconds',
        releasing = exists (select from afterturn.jobs w where w.blocked_by = p_id)
    where j.id = p_id
$$;

-- What a job has come to; null while it has not ended.
create or replace function afterturn.outcome_of(p_id bigint) returns text
language sql stable as $$ select j.outcome from afterturn.jobs j where j.id = p_id $$;

-- Has a flush or an expiry give way to an erase: ends it and enqueues its successor at the tail, in
-- one transaction (requeued); or ends it for good, since the erase takes all it covers (superseded);
-- or puts it back for a moment. `outcome_of` tells which.
create or replace function afterturn.requeue(p_id bigint) returns bigint
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    job afterturn.jobs;
    successor bigint;
begin
    select * into job from afterturn.jobs j where j.id = p_id for update;
    -- Behind an erase of all it covers it would find nothing, and keep the scope's name.
    if exists (select from afterturn.erase_intents i
               join afterturn.jobs f on f.id = i.job_id and f.path = i.path
               where i.path = any(afterturn.covering(job.path)) and i.job_id > p_id
                   and not f.request ? 'named') then
        perform afterturn.end_lifecycle(p_id, 'superseded', '{}');
        return null;
    end if;
    -- Whoever enqueues holds the lane and may wait for this row: never queued for from here.
    if not afterturn.try_lock_lane(job.path) then
        perform afterturn.put_back(p_id, job.attempts, job.reason, '1 second');
        return null;
    end if;
    perform afterturn.end_lifecycle(p_id, 'requeued', '{}');
    select e.job_id into successor
    from afterturn.enqueue_lifecycle(job.kind, job.path, job.request, '0') e;
    update afterturn.jobs j set receipt = jsonb_build_object('successor', successor)
    where j.id = p_id;
    return successor;
end $$;

-- A failed attempt of a lifecycle job: it never dies. All but erases yield to a waiting erase.
create or replace function afterturn.fail_lifecycle(
    p_id bigint, p_lease_token uuid, p_reason text, p_backoff interval,
    out verdict text, out successor bigint)
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    job afterturn.jobs;
begin
    select * into job from afterturn.jobs j
    where j.id = p_id and j.lease_token = p_lease_token and j.finished_at is null for update;
    if not found then
        verdict := 'lost';
    elsif job.kind <> 'forget' and afterturn.erase_waits(job.id, job.path) then
        successor := afterturn.requeue(p_id);
        verdict := afterturn.outcome_of(p_id);
        if verdict is null then
            update afterturn.jobs j set reason = p_reason where j.id = p_id;
            verdict := 'retry';
        end if;
    else
        perform afterturn.put_back(p_id, job.attempts, p_reason, p_backoff);
        verdict := 'retry';
    end if;
end $$;

-- Looks anew at up to p_limit jobs that waited for a job which ended: `free` are those that may
-- run now, `seen` how many were looked at. When none is left the ended job's mark goes. Safe to
-- repeat, by anybody. With one of them in hand nobody is waited for: whoever holds the job before it
-- may wait for this one. It stays as it is then, and when there are only such, `free` is null: come
-- back soon; the mark brings somebody in any case.
create or replace function afterturn.unblock(
    p_id bigint, p_limit integer, out free bigint[], out seen integer)
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    waiting bigint;
    before bigint;
    are_left boolean := false;
begin
    -- What a crash takes back is looked at again: the mark still stands then.
    perform set_config('synchronous_commit', 'off', true);
    free := '{}';
    seen := 0;
    if exists (select from afterturn.jobs j where j.id = p_id and j.finished_at is null) then
        return;
    end if;
    for waiting in
        select j.id from afterturn.jobs j
        where j.blocked_by = p_id and j.finished_at is null
        order by j.id limit p_limit for update skip locked
    loop
        before := afterturn.blocker_of(waiting);
        if before is not null then
            perform from afterturn.jobs j where j.id = before and j.finished_at is null
                for share skip locked;
            if not found then
                are_left := true;
                continue;
            end if;
        end if;
        seen := seen + 1;
        perform afterturn.set_blocker(waiting, before);
        if before is null then
            free := free || waiting;
        end if;
    end loop;
    if are_left and seen = 0 then
        free := null;
    elsif seen = 0 then
        update afterturn.jobs j set releasing = false
        where j.id = p_id and j.releasing
            and not exists (select from afterturn.jobs w where w.blocked_by = p_id);
    end if;
end $$;

-- The fence of every transaction of a lifecycle job: id, kind, path and random lease token (after
-- a failover an id may mean another job), the lease renewed, the row locked until we commit.
create or replace function afterturn.hold(
    p_id bigint, p_kind text, p_path text, p_lease_token uuid, p_lease interval)
returns boolean
language plpgsql set plan_cache_mode = force_generic_plan as $$
begin
    update afterturn.jobs j
    set ready_at = afterturn.clock() + p_lease, ring_at = afterturn.clock() + p_lease
    where j.id = p_id and j.kind = p_kind and j.path = p_path
        and j.lease_token = p_lease_token and j.finished_at is null;
    return found;
end $$;

-- Adds numbers to a job's counts.
create or replace function afterturn.count_rows(p_id bigint, p_table text, p_rows bigint)
returns void
language sql as $$
    update afterturn.jobs j
    set counts = jsonb_set(j.counts, array[p_table],
        to_jsonb(coalesce((j.counts ->> p_table)::bigint, 0) + p_rows))
    where j.id = p_id and p_rows > 0
$$;

-- The record jobs of turns acknowledged under a scope and not yet recorded, leased by whoever
-- flushes: another worker's lease is taken over and its apply refused, so nobody waits for it.
-- Ids in (p_after, p_until]: each is tried once in a flush, so that it ends.
create or replace function afterturn.claim_unrecorded(
    p_path text, p_after bigint, p_until bigint, p_limit integer, p_max_attempts integer, p_lease interval)
returns table (
    job_id bigint, lease uuid, attempts integer, path text, turn_id text, session text,
    query text, answer text, names text[], metadata jsonb, occurred_at timestamptz,
    staged_at timestamptz)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    at timestamptz := afterturn.clock();
begin
    return query
    with taken as (
        select j.id from afterturn.jobs j
        where j.finished_at is null and j.kind = 'record' and j.id > p_after and j.id <= p_until
            and j.path >= p_path and j.path < afterturn.under_end(p_path)
            and j.attempts < p_max_attempts
        order by j.id limit p_limit for update),
    leased as (
        update afterturn.jobs j
        set lease_token = gen_random_uuid(), attempts = j.attempts + 1,
            ready_at = at + p_lease, ring_at = at + p_lease
        from taken where j.id = taken.id
        returning j.id, j.lease_token, j.attempts, j.path, j.turn_id)
    select l.id, l.lease_token, l.attempts, l.path, l.turn_id, t.session, t.query, t.answer,
        t.names, t.metadata, t.occurred_at, t.staged_at
    from leased l left join afterturn.turns t on t.path = l.path and t.turn_id = l.turn_id
    order by l.id;
end $$;

-- Publishes up to p_limit pending rows under the scope. `verdict` is more, done, superseded (a
-- younger erase covers the scope), requeued, busy (put back for a moment) or lost.
create or replace function afterturn.flush_chunk(
    p_id bigint, p_lease_token uuid, p_path text, p_limit integer, p_embed boolean,
    p_lease interval, out verdict text, out embed_jobs bigint[])
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    paths text[];
    records text[];
    numbers jsonb;
    generation bigint;
    moved integer;
begin
    embed_jobs := '{}';
    perform afterturn.require_read_committed();
    perform afterturn.lock_shared(array[p_path]);
    if not afterturn.hold(p_id, 'flush', p_path, p_lease_token, p_lease) then
        verdict := 'lost';
        return;
    end if;
    if exists (select from afterturn.erase_intents i
               join afterturn.jobs f on f.id = i.job_id and f.path = i.path
               where i.path = any(afterturn.covering(p_path)) and i.job_id > p_id
                   and not f.request ? 'named') then
        perform afterturn.end_lifecycle(p_id, 'superseded', '{}');
        verdict := 'superseded';
        return;
    end if;
    select coalesce(array_agg(m.path order by m.path, m.record_id), '{}'),
        coalesce(array_agg(m.record_id order by m.path, m.record_id), '{}')
    into paths, records
    from (select w.path, w.record_id from afterturn.memories w
          where w.pending and w.path >= p_path and w.path < afterturn.under_end(p_path)
          order by w.path, w.record_id limit p_limit for update) m;
    moved := cardinality(records);
    if moved > 0 then
        select coalesce(jsonb_object_agg(m.path, m.content), '{}') into numbers
        from afterturn.move_content(
            case when moved < p_limit then paths || p_path else paths end, false) m;
        delete from afterturn.memories m using unnest(paths, records) k(path, record_id)
        where m.path = k.path and m.record_id = k.record_id and not m.pending;
        delete from afterturn.memory_sources s using unnest(paths, records) k(path, record_id)
        where s.path = k.path and s.record_id = k.record_id and not s.pending;
        update afterturn.memories m
        set pending = false, content = (numbers ->> m.path)::bigint
        from unnest(paths, records) k(path, record_id)
        where m.path = k.path and m.record_id = k.record_id and m.pending;
        update afterturn.memory_sources s set pending = false
        from unnest(paths, records) k(path, record_id)
        where s.path = k.path and s.record_id = k.record_id and s.pending;
        if p_embed then
            embed_jobs := array(select e from afterturn.enqueue_embed(paths) e);
        end if;
        perform afterturn.count_rows(p_id, 'memories', moved);
    end if;
    if moved >= p_limit then
        verdict := 'more';
        return;
    end if;
    -- Turns acknowledged before that could not be recorded, because a younger erase stands which
    -- does not take them as a whole: the flush goes behind it.
    if exists (select from afterturn.erase_intents i
               join afterturn.jobs f on f.id = i.job_id
               where i.job_id > p_id and (f.request ? 'named' or f.path <> i.path)
                   and exists (select from afterturn.jobs j
                       where j.finished_at is null and j.kind = 'record'
                           and j.path >= greatest(p_path, i.path)
                           and j.path < least(afterturn.under_end(p_path),
                               afterturn.under_end(i.path)))) then
        perform afterturn.requeue(p_id);
        verdict := coalesce(afterturn.outcome_of(p_id), 'busy');
        return;
    end if;
    generation := (numbers ->> p_path)::bigint;
    if generation is null then
        select m.content into generation from afterturn.move_content(array[p_path], false) m;
    end if;
    perform afterturn.end_lifecycle(p_id, 'done', jsonb_build_object('generation', generation));
    verdict := 'done';
end $$;
