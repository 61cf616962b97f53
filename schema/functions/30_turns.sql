-- The way of a turn: staged by the caller, recorded and extracted by workers.
--
-- The order in which every transaction takes its locks: 0. the lock between an erase's last step and
-- a change of the embedder, never waited for by the erase; 1. mutation locks, ascending; 2. job rows
-- by id; 3. turns by (path, turn); 4. pending rows by (path, record); 5. scope_generations by key;
-- 6. published rows; 7. the erase log's head; 8. lane locks of at most one enqueue, last.

-- One round trip: looks, locks, judges and inserts, where what follows a lock is a statement with a
-- snapshot of its own. `p_covers` are the covering paths, root first and the turn's own last. Returns
-- the number of the record job, or why there is none: known, erasing or stale. Few statements, a
-- single value and no array to be put together here: each cost a hundredth and more of a hand-over.
-- Extraction is enqueued by the recording. (A database that served the release before keeps the form
-- with a single path beside this one, for the processes of that release that are still at work.)
create or replace function afterturn.stage_turn(
    p_covers text[], p_turn_id text, p_token bigint[], p_session text, p_query text,
    p_answer text, p_names text[], p_metadata jsonb, p_occurred_at timestamptz,
    p_ring_after interval)
returns text
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    own_path text := p_covers[cardinality(p_covers)];
    at timestamptz := afterturn.clock();
    covering_path text;
    locked text;
    record_job bigint;
begin
    if current_setting('transaction_isolation') <> 'read committed'
            or current_setting('synchronous_commit') in ('off', 'local') then
        perform afterturn.require_read_committed();
        perform afterturn.require_durable_commit();
    end if;
    if exists (select from afterturn.erase_intents i where i.path = any(p_covers)) then
        return 'erasing';
    end if;
    -- Root first is ascending by key. An assignment, because it needs no plan of its own.
    foreach covering_path in array p_covers loop
        locked := pg_advisory_xact_lock_shared(afterturn.lock_key(0, covering_path))::text;
    end loop;
    with vouched as materialized (
        select from afterturn.installation n
        where not exists (
                select from afterturn.erase_intents i where i.path = any(p_covers))
            -- As `token_of`, without a call.
            and not exists (
                select from unnest(p_covers, p_token) c(path, erase)
                where c.erase is distinct from coalesce((
                    select g.erase from afterturn.scope_generations g
                    where g.scope_key = afterturn.keyed(n.hash_key, c.path)), 0))),
    turn as (
        insert into afterturn.turns (path, turn_id, session, query, answer, names, metadata,
            happened_at, occurred_at, staged_at, token)
        select own_path, p_turn_id, p_session, p_query, p_answer, p_names,
            coalesce(p_metadata, '{}'), coalesce(p_occurred_at, at), p_occurred_at, at, p_token
        from vouched
        on conflict (path, turn_id) do nothing returning turn_id)
    insert into afterturn.jobs (kind, path, turn_id, ready_at, ring_at, created_at)
    select 'record', own_path, turn.turn_id, at, at + p_ring_after, at from turn
    returning id into record_job;
    if record_job is not null then
        return record_job;
    end if;
    -- Known before refused: an acknowledged turn that is staged again is not answered "stale".
    if exists (select from afterturn.turns t
            where t.path = own_path and t.turn_id = p_turn_id) then
        return 'known';
    end if;
    return case when afterturn.erasing(p_covers) then 'erasing' else 'stale' end;
end $$;

-- Whether a job whose worker was lost may be what killed it: it lost one before, or has no attempt
-- to spare. Such a job is worked on alone, so that it takes no neighbour with it; the others of a
-- lost batch go on together, or a worker's end would cost as many turns as it held.
create or replace function afterturn.is_suspect(p_attempts integer, p_max_attempts integer)
returns boolean
language sql immutable as $$
    select p_attempts >= least(2, p_max_attempts - 1)
$$;

-- Leases turn jobs. Without `p_lost` those that wait, a batch at a time: the named ones first, among
-- them such whose worker was lost, then any. With it only named suspects. The attempt is counted
-- before the work.
create or replace function afterturn.claim_turns(
    p_kind text, p_ids bigint[], p_limit integer, p_lost boolean, p_max_attempts integer,
    p_lease interval)
returns table (
    job_id bigint, lease uuid, attempts integer, path text, turn_id text, session text,
    query text, answer text, names text[], metadata jsonb, occurred_at timestamptz,
    staged_at timestamptz)
-- A plan made while the ledger was small is kept: it must not read the whole of a large one.
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
declare
    at timestamptz := afterturn.clock();
    taken bigint[];
begin
    perform afterturn.bury(p_kind, p_ids, p_max_attempts);
    taken := array(
        select j.id from afterturn.jobs j
        where j.id = any(p_ids) and j.kind = p_kind and j.finished_at is null
            and j.ready_at <= at and p_lost = (j.lease_token is not null
                and afterturn.is_suspect(j.attempts, p_max_attempts))
        order by j.id limit p_limit for update skip locked);
    if not p_lost and cardinality(taken) < p_limit then
        taken := taken || array(
            select j.id from afterturn.jobs j
            where j.kind = p_kind and j.finished_at is null and j.blocked_by is null
                and j.lease_token is null and j.ready_at <= at and not j.id = any(taken)
            order by j.ready_at limit p_limit - cardinality(taken) for update skip locked);
    end if;
    return query
    with leased as (
        update afterturn.jobs j
        set lease_token = gen_random_uuid(), attempts = j.attempts + 1,
            ready_at = at + p_lease, ring_at = at + p_lease
        where j.id = any(taken)
        returning j.id, j.lease_token, j.attempts, j.path, j.turn_id)
    select l.id, l.lease_token, l.attempts, l.path, l.turn_id, t.session, t.query, t.answer,
        t.names, t.metadata, t.occurred_at, t.staged_at
    from leased l left join afterturn.turns t on t.path = l.path and t.turn_id = l.turn_id
    order by l.id;
end $$;

-- Gives up on named turn jobs whose attempts are used up (their last lease ran out).
create or replace function afterturn.bury(p_kind text, p_ids bigint[], p_max_attempts integer)
returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    spent afterturn.jobs;
begin
    for spent in
        select * from afterturn.jobs j
        where j.id = any(p_ids) and j.kind = p_kind and j.finished_at is null
            and j.ready_at <= afterturn.clock() and j.attempts >= p_max_attempts
        order by j.id for update skip locked
    loop
        perform afterturn.end_turn_job(spent.id, 'dead', 'worker lost');
    end loop;
end $$;

-- Ends a turn job whose row the caller has locked, and says so on its turn. A turn that is dead
-- stays visible by its id.
create or replace function afterturn.end_turn_job(p_id bigint, p_outcome text, p_reason text)
returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    ended afterturn.jobs;
begin
    update afterturn.jobs j
    set finished_at = afterturn.clock(), outcome = p_outcome, reason = p_reason, lease_token = null
    where j.id = p_id returning * into ended;
    if p_outcome = 'dead' and ended.kind in ('record', 'extract') then
        update afterturn.turns t
        set outcome = case when ended.kind = 'record' then 'dead'
                when t.outcome = 'dead' then 'dead' else 'degraded' end,
            reason = p_reason,
            extracted = case when ended.kind = 'extract' then 0 else t.extracted end,
            extracted_at = case when ended.kind = 'extract' then afterturn.clock()
                else t.extracted_at end
        where t.path = ended.path and t.turn_id = ended.turn_id;
    end if;
end $$;

-- Writes what was made of a batch of turns, and ends their jobs, in one transaction.
--
-- p_work: [{job, lease, path, turn_id, call, reason, records: [{record_id, path, layer,
-- origin, text, metadata, importance, occurred_at, session, sources: [{turn_id, turn_path}]}]}].
-- A record's path is the turn's or an ancestor's. The verdict of each job:
--   done       its rows are in memory and readable (a turn publishes itself);
--   stale      an erase took the turn: the job is refused and nothing of it remains;
--   lost       another worker holds or ended the job;
--   erasing    an erase stands: the job waits and is tried again, its attempt not counted;
--   misplaced  a record outside the turn's scope and its ancestors: refused, nothing written.
--   again      another turn of the same `call` is not done, so nothing of this one was written: the
--              lease is still ours, and the turn is to be extracted again without the other.
create or replace function afterturn.apply_turns(p_kind text, p_work jsonb, p_embed boolean)
returns table (job_id bigint, verdict text, next_kind text, next_job bigint)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    at timestamptz := afterturn.clock();
    work jsonb;
    ids bigint[];
    paths text[];
    turn_ids text[];
    verdicts jsonb := '{}';
    done bigint[];
    touched text[];
    numbers jsonb;
begin
    perform afterturn.require_read_committed();
    -- A look before the locks: while an erase stands nobody queues behind it.
    select coalesce(jsonb_agg(w) filter (where not e.standing), '[]'),
        coalesce(jsonb_object_agg(w ->> 'job', 'erasing') filter (where e.standing), '{}')
    into work, verdicts
    from jsonb_array_elements(p_work) w,
        lateral (select afterturn.erasing(afterturn.covering(w ->> 'path')) as standing) e;
    select coalesce(array_agg((w ->> 'job')::bigint), '{}'),
        coalesce(array_agg(w ->> 'path'), '{}'), coalesce(array_agg(w ->> 'turn_id'), '{}')
    into ids, paths, turn_ids from jsonb_array_elements(work) w;

    perform afterturn.lock_shared(array(select distinct unnest(paths)));
    perform from afterturn.jobs j
    where j.id = any(ids || array(select k::bigint from jsonb_object_keys(verdicts) k))
    order by j.id for update;
    perform from afterturn.turns t
    join unnest(paths, turn_ids) w(path, turn_id) on t.path = w.path and t.turn_id = w.turn_id
    order by t.path, t.turn_id for update of t;

    select verdicts || coalesce(jsonb_object_agg(w ->> 'job', case
        when j.id is null then 'stale'
        when j.finished_at is not null or j.lease_token is distinct from (w ->> 'lease')::uuid
            or j.kind <> p_kind or j.path is distinct from (w ->> 'path')
            or j.turn_id is distinct from (w ->> 'turn_id') then 'lost'
        when t.turn_id is null then 'stale'
        when afterturn.erasing(afterturn.covering(t.path)) then 'erasing'
        when t.token is distinct from afterturn.token_of(afterturn.covering(t.path)) then 'stale'
        when exists (select from jsonb_array_elements(w -> 'records') r
            where not (r ->> 'path') = any(afterturn.covering(t.path))) then 'misplaced'
        else 'done' end), '{}')
    into verdicts
    from jsonb_array_elements(work) w
    left join afterturn.jobs j on j.id = (w ->> 'job')::bigint
    left join afterturn.turns t on t.path = w ->> 'path' and t.turn_id = w ->> 'turn_id';
    -- What one call learned of its turns may stem from any of them.
    select verdicts || coalesce(jsonb_object_agg(w ->> 'job', 'again'), '{}') into verdicts
    from jsonb_array_elements(work) w
    where verdicts ->> (w ->> 'job') = 'done' and w ? 'call' and exists (
        select from jsonb_array_elements(p_work) o
        where o ->> 'call' = w ->> 'call' and verdicts ->> (o ->> 'job') <> 'done');
    done := array(select v.key::bigint from jsonb_each_text(verdicts) v where v.value = 'done');

    touched := array(
        select distinct r ->> 'path' from jsonb_array_elements(work) w,
            jsonb_array_elements(w -> 'records') r
        where (w ->> 'job')::bigint = any(done));
    select coalesce(jsonb_object_agg(m.path, m.content), '{}') into numbers
    from afterturn.move_content(touched, false) m;

    if p_kind = 'extract' then
        perform afterturn.write_facts((
            select coalesce(jsonb_agg(w), '[]') from jsonb_array_elements(work) w
            where (w ->> 'job')::bigint = any(done)), numbers);
    end if;
    with rows as materialized (
        select distinct on (r ->> 'path', r ->> 'record_id')
            w ->> 'path' as turn_path, w ->> 'turn_id' as turn_id, r
        from jsonb_array_elements(work) w, jsonb_array_elements(w -> 'records') r
        where (w ->> 'job')::bigint = any(done) and p_kind = 'record'
        order by r ->> 'path', r ->> 'record_id'),
    written as (
        insert into afterturn.memories as m (path, record_id, pending, turn_path, turn_id, session,
            layer, origin, text, metadata, importance, occurred_at, recorded_at, content, revision)
        select r ->> 'path', r ->> 'record_id', false, turn_path, turn_id, r ->> 'session',
            r ->> 'layer', r ->> 'origin', r ->> 'text', r -> 'metadata',
            (r ->> 'importance')::double precision, (r ->> 'occurred_at')::timestamptz, at,
            (numbers ->> (r ->> 'path'))::bigint, afterturn.draw_number()
        from rows
        on conflict (path, record_id, pending) do update set
            turn_path = excluded.turn_path, turn_id = excluded.turn_id,
            session = excluded.session, layer = excluded.layer, origin = excluded.origin,
            text = excluded.text, metadata = excluded.metadata,
            importance = excluded.importance, occurred_at = excluded.occurred_at,
            recorded_at = excluded.recorded_at, content = excluded.content,
            revision = excluded.revision, embedding = null),
    replaced as (
        delete from afterturn.memory_sources s using rows
        where s.path = r ->> 'path' and s.record_id = r ->> 'record_id' and not s.pending
            and not exists (select from jsonb_array_elements(r -> 'sources') k
                where k ->> 'turn_path' = s.turn_path and k ->> 'turn_id' = s.turn_id))
    insert into afterturn.memory_sources (path, record_id, pending, turn_path, turn_id)
    select distinct r ->> 'path', r ->> 'record_id', false, k ->> 'turn_path', k ->> 'turn_id'
    from rows, jsonb_array_elements(r -> 'sources') k
    on conflict do nothing;

    update afterturn.turns t
    set recorded = case when p_kind = 'record' then w.written else t.recorded end,
        recorded_at = case when p_kind = 'record' then at else t.recorded_at end,
        extracted = case when p_kind = 'extract' then w.written else t.extracted end,
        extracted_at = case when p_kind = 'extract' then at else t.extracted_at end,
        outcome = case
            when t.outcome <> 'waiting' then t.outcome
            when p_kind = 'record' and t.extracted_at is null then 'waiting'
            when p_kind = 'extract' and t.recorded_at is null then 'waiting'
            else 'done' end,
        reason = case when w.note <> '' then w.note else t.reason end
    from (select w ->> 'path' as path, w ->> 'turn_id' as turn_id,
              jsonb_array_length(w -> 'records') as written, coalesce(w ->> 'reason', '') as note
          from jsonb_array_elements(work) w where (w ->> 'job')::bigint = any(done)) w
    where t.path = w.path and t.turn_id = w.turn_id;

    update afterturn.turns t
    set outcome = 'degraded', reason = 'record outside the scope', extracted = 0, extracted_at = at
    from jsonb_array_elements(work) w
    where verdicts ->> (w ->> 'job') = 'misplaced' and p_kind = 'extract'
        and t.path = w ->> 'path' and t.turn_id = w ->> 'turn_id';
    -- What a stale turn left behind goes too; its other jobs find it gone.
    delete from afterturn.turns t using jsonb_array_elements(work) w
    where verdicts ->> (w ->> 'job') = 'stale' and t.path = w ->> 'path'
        and t.turn_id = w ->> 'turn_id'
        and exists (select from afterturn.jobs j where j.id = (w ->> 'job')::bigint
            and j.finished_at is null and j.lease_token = (w ->> 'lease')::uuid);

    update afterturn.jobs j
    set lease_token = null, attempts = greatest(j.attempts - 1, 0),
        ready_at = at + interval '1 second', ring_at = at + interval '1 second'
    from jsonb_array_elements(p_work) w
    where verdicts ->> (w ->> 'job') = 'erasing' and j.id = (w ->> 'job')::bigint
        and j.lease_token = (w ->> 'lease')::uuid and j.finished_at is null;
    delete from afterturn.jobs j using jsonb_array_elements(p_work) w
    where verdicts ->> (w ->> 'job') in ('done', 'stale', 'misplaced')
        and j.id = (w ->> 'job')::bigint and j.lease_token = (w ->> 'lease')::uuid
        and j.finished_at is null;

    return query
    select v.key::bigint, v.value, null, null::bigint from jsonb_each_text(verdicts) v;
    if p_kind = 'record' then
        return query
        insert into afterturn.jobs as j (kind, path, turn_id, ready_at, ring_at, created_at)
        select 'extract', w ->> 'path', w ->> 'turn_id', at + e.after,
            at + greatest(e.after, interval '10 seconds'), at
        from jsonb_array_elements(work) w,
            make_interval(secs => coalesce((w ->> 'extract_after')::double precision, 0)) e(after) where (w ->> 'job')::bigint = any(done)
        order by w ->> 'path', w ->> 'turn_id'
        returning null::bigint, null, j.kind, j.id;
    end if;
    if p_embed then
        return query
        select null::bigint, null, 'embed', e.id from afterturn.enqueue_embed(touched) e(id);
    end if;
end $$;

-- One waiting embed job a path; an unclaimed one is reused, its row locked until we commit, so
-- that whoever claims it sees our rows. Returns the new ones: the others have been rung for.
create or replace function afterturn.enqueue_embed(paths text[]) returns setof bigint
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    at timestamptz := afterturn.clock();
begin
    return query
    with waiting as (
        insert into afterturn.jobs as j (kind, path, ready_at, ring_at, created_at)
        select 'embed', p.path, at, at + interval '10 seconds', at
        from (select distinct unnest(paths) as path order by 1) p
        on conflict (path) where kind = 'embed' and finished_at is null and lease_token is null
        do update set path = excluded.path
        returning j.id, j.xmax = 0 as is_new)
    select w.id from waiting w where w.is_new;
end $$;

-- A failed attempt: back with a later `ready_at`, or dead. Nothing happens to a job whose lease
-- is gone.
create or replace function afterturn.fail_turn_job(
    p_id bigint, p_lease uuid, p_reason text, p_max_attempts integer, p_backoff interval)
returns text
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    held afterturn.jobs;
begin
    select * into held from afterturn.jobs j
    where j.id = p_id and j.lease_token = p_lease and j.finished_at is null for update;
    if not found then
        return 'lost';
    end if;
    if held.attempts >= p_max_attempts then
        perform afterturn.end_turn_job(p_id, 'dead', p_reason);
        return 'dead';
    end if;
    perform afterturn.put_back(p_id, held.attempts, p_reason, p_backoff);
    return 'retry';
end $$;

-- Puts a leased job, whose row the caller has locked, back among the waiting ones. An embed job
-- whose path has another one waiting is left to that one.
create or replace function afterturn.put_back(
    p_id bigint, p_attempts integer, p_reason text, p_wait interval) returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    at timestamptz := afterturn.clock();
begin
    delete from afterturn.jobs j
    where j.id = p_id and j.kind = 'embed' and exists (
        select from afterturn.jobs o where o.path = j.path and o.kind = 'embed'
            and o.finished_at is null and o.lease_token is null);
    if not found then
        begin
            update afterturn.jobs j
            set lease_token = null, attempts = p_attempts, reason = p_reason,
                ready_at = at + p_wait, ring_at = at + p_wait
            where j.id = p_id;
        exception when unique_violation then  -- one was added that we could not see yet
            delete from afterturn.jobs j where j.id = p_id;
        end;
    end if;
end $$;

-- Extends leases; returns the jobs that are still held.
create or replace function afterturn.renew(p_ids bigint[], p_leases uuid[], p_lease interval)
returns setof bigint
language sql as $$
    with held as materialized (
        select j.id from afterturn.jobs j
        join unnest(p_ids, p_leases) h(id, lease) on j.id = h.id and j.lease_token = h.lease
        where j.finished_at is null order by j.id for update of j)
    update afterturn.jobs j
    set ready_at = afterturn.clock() + p_lease, ring_at = afterturn.clock() + p_lease
    from held h where j.id = h.id
    returning j.id
$$;

-- Gives jobs back unfinished, their attempt not counted (a worker that stops).
create or replace function afterturn.release(p_ids bigint[], p_leases uuid[]) returns integer
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    held afterturn.jobs;
    released integer := 0;
begin
    for held in
        select j.* from afterturn.jobs j
        join unnest(p_ids, p_leases) h(id, lease) on j.id = h.id and j.lease_token = h.lease
        where j.finished_at is null order by j.id for update of j
    loop
        perform afterturn.put_back(held.id, greatest(held.attempts - 1, 0), held.reason, '0');
        released := released + 1;
    end loop;
    return released;
end $$;

-- Embed jobs: leased like turns, one at a time; a named one, else any that waits.
create or replace function afterturn.claim_embed(p_ids bigint[], p_lease interval)
returns table (job_id bigint, lease uuid, attempts integer, path text)
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
declare
    at timestamptz := afterturn.clock();
    taken bigint;
    kind_of constant text := 'embed';  -- not said outright, or an index of many jobs would do
begin
    select q.id into taken from afterturn.jobs q
    where q.id = any(p_ids) and q.kind = kind_of and q.finished_at is null and q.ready_at <= at
    order by q.id limit 1 for update skip locked;
    if not found then
        select q.id into taken from afterturn.jobs q
        where q.kind = 'embed' and q.finished_at is null and q.blocked_by is null
            and q.lease_token is null and q.ready_at <= at
        order by q.ready_at limit 1 for update skip locked;
    end if;
    return query
    update afterturn.jobs j
    set lease_token = gen_random_uuid(), attempts = j.attempts + 1,
        ready_at = at + p_lease, ring_at = at + p_lease
    where j.id = taken
    returning j.id, j.lease_token, j.attempts, j.path;
end $$;

-- Vectors for rows that still are what was embedded: the revision says so. p_last ends the job.
create or replace function afterturn.apply_embed(
    p_job bigint, p_lease_token uuid, p_path text, p_record_ids text[], p_revisions bigint[],
    p_vectors bytea[], p_last boolean, p_lease interval) returns text
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    number bigint;
begin
    perform afterturn.require_read_committed();
    if afterturn.erasing(afterturn.covering(p_path)) then
        return 'erasing';
    end if;
    perform afterturn.lock_shared(array[p_path]);
    perform from afterturn.jobs j
    where j.id = p_job and j.kind = 'embed' and j.path = p_path
        and j.lease_token = p_lease_token and j.finished_at is null for update;
    if not found then
        return 'lost';
    end if;
    if afterturn.erasing(afterturn.covering(p_path)) then
        return 'erasing';
    end if;
    if cardinality(p_record_ids) > 0 then
        select m.content into number from afterturn.move_content(array[p_path], false) m;
        update afterturn.memories m set embedding = v.vector, content = number
        from unnest(p_record_ids, p_revisions, p_vectors) v(record_id, revision, vector)
        where m.path = p_path and m.record_id = v.record_id and not m.pending
            and m.revision = v.revision;
    end if;
    if p_last then
        delete from afterturn.jobs j where j.id = p_job;
    else
        update afterturn.jobs j
        set ready_at = afterturn.clock() + p_lease, ring_at = afterturn.clock() + p_lease
        where j.id = p_job;
    end if;
    return 'done';
end $$;
