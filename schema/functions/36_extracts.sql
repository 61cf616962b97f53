-- Extraction jobs: claimed by the scope, so that few calls of a model serve many turns.

-- Leases waiting extract jobs as calls for a model: the named ones first, then any. A call takes the
-- oldest waiting turns of one scope, up to p_turns and p_bytes of text, while no other first call
-- of that scope is under way. A turn that failed before makes a call of its own, and nobody waits
-- for it: one bad turn costs its neighbours one retry. With p_turns = 1 every call is one turn, and
-- a scope may have several under way. Of jobs whose worker was lost suspects are left to
-- `claim_turns`; the others count as new.
create or replace function afterturn.claim_extracts(
    p_ids bigint[], p_calls integer, p_turns integer, p_bytes bigint, p_max_attempts integer,
    p_lease interval)
returns table (
    call bigint, job_id bigint, lease uuid, attempts integer, path text, turn_id text,
    session text, query text, answer text, names text[], metadata jsonb,
    occurred_at timestamptz, staged_at timestamptz)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    at timestamptz := afterturn.clock();
    heads bigint[];
    head_paths text[];
    tried boolean[];
    taken bigint[] := '{}';
    calls bigint[] := '{}';
    more bigint[];
    found_calls integer := 0;
begin
    perform afterturn.bury('extract', p_ids, p_max_attempts);
    -- One head a scope; of those that nobody named the oldest and, where one scope has much waiting,
    -- the newest, so that it hides no other.
    with seen as (
        select j.id, j.path, p_turns = 1 or (j.lease_token is null and j.attempts > 0) as alone,
            0 as rank, j.ready_at
        from afterturn.jobs j
        where j.id = any(p_ids) and j.kind = 'extract' and j.finished_at is null
            and (j.lease_token is null or not afterturn.is_suspect(j.attempts, p_max_attempts))
            and j.ready_at <= at
        union all
        (select j.id, j.path, j.attempts > 0 or p_turns = 1, 1, j.ready_at
         from afterturn.jobs j
         where j.kind = 'extract' and j.finished_at is null and j.blocked_by is null
            and j.lease_token is null and j.ready_at <= at
         order by j.ready_at limit 400)
        union all
        (select j.id, j.path, j.attempts > 0 or p_turns = 1, 1, j.ready_at
         from afterturn.jobs j
         where j.kind = 'extract' and j.finished_at is null and j.blocked_by is null
            and j.lease_token is null and j.ready_at <= at
         order by j.ready_at desc limit 100)),
    chosen as (
        select distinct on (s.path, case when s.alone then s.id end) s.*
        from seen s order by s.path, case when s.alone then s.id end, s.rank, s.ready_at, s.id)
    select array_agg(c.id order by c.rank, c.ready_at, c.id),
        array_agg(c.path order by c.rank, c.ready_at, c.id),
        array_agg(c.alone order by c.rank, c.ready_at, c.id)
    into heads, head_paths, tried from chosen c;
    for n in 1..coalesce(cardinality(heads), 0) loop
        exit when found_calls >= p_calls;
        if tried[n] then
            more := array[heads[n]];
        else
            -- Calls take the oldest first, so one that is under way holds some of the oldest.
            continue when exists (
                select from (
                    select o.lease_token, o.attempts, o.ready_at from afterturn.jobs o
                    where o.path = head_paths[n] and o.kind = 'extract'
                        and o.finished_at is null
                    order by o.id limit 200) o
                where o.lease_token is not null and o.attempts = 1 and o.ready_at > at);
            more := array(
                select m.id from afterturn.jobs m
                where m.path = head_paths[n] and m.kind = 'extract' and m.finished_at is null
                    and ((m.lease_token is null and m.attempts = 0)
                        or (m.lease_token is not null and m.ready_at <= at
                            and not afterturn.is_suspect(m.attempts, p_max_attempts)))
                order by m.id limit p_turns);
            more := array(
                select s.id from (
                    select m.id, row_number() over (order by m.id) as place,
                        sum(coalesce(octet_length(t.query), 0)
                            + coalesce(octet_length(t.answer), 0)) over (order by m.id) as bytes
                    from afterturn.jobs m
                    left join afterturn.turns t on t.path = m.path and t.turn_id = m.turn_id
                    where m.id = any(more)) s
                where s.place = 1 or s.bytes <= p_bytes order by s.id);
        end if;
        more := array(
            select m.id from afterturn.jobs m
            where m.id = any(more) and m.finished_at is null
                and (m.lease_token is null or m.ready_at <= at)
            order by m.id for update skip locked);
        continue when cardinality(more) = 0;
        update afterturn.jobs j
        set lease_token = gen_random_uuid(), attempts = j.attempts + 1,
            ready_at = at + p_lease, ring_at = at + p_lease
        where j.id = any(more);
        taken := taken || more;
        calls := calls || array_fill(more[1], array[cardinality(more)]);
        found_calls := found_calls + 1;
    end loop;
    return query
    select k.call, j.id, j.lease_token, j.attempts, j.path, j.turn_id, t.session, t.query,
        t.answer, t.names, t.metadata, t.occurred_at, t.staged_at
    from unnest(taken, calls) k(id, call)
    join afterturn.jobs j on j.id = k.id
    left join afterturn.turns t on t.path = j.path and t.turn_id = j.turn_id
    order by k.call, j.id;
end $$;

-- Puts a job back because the model is out of reach, its attempt not counted: nothing is wrong
-- with the turn. Once the job is older than p_patience the attempt counts like any other.
create or replace function afterturn.defer_turn_job(
    p_id bigint, p_lease uuid, p_reason text, p_wait interval, p_patience interval,
    p_max_attempts integer) returns text
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    held afterturn.jobs;
begin
    select * into held from afterturn.jobs j
    where j.id = p_id and j.lease_token = p_lease and j.finished_at is null for update;
    if not found then
        return 'lost';
    end if;
    if held.created_at < afterturn.clock() - p_patience then
        return afterturn.fail_turn_job(p_id, p_lease, p_reason, p_max_attempts, p_wait);
    end if;
    perform afterturn.put_back(p_id, greatest(held.attempts - 1, 0), p_reason, p_wait);
    return 'waits';
end $$;
