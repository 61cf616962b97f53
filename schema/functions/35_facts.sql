-- What was learned from turns, written so that a thing learned twice is one fact with two sources.
--
-- A fact without a key is known by its text. A fact with a key (`key` in its row: the record id
-- stands for its subject and attribute) has one statement a turn in `fact_statements`; what is
-- current follows from them alone, in whatever order the turns were extracted:
--   the latest by turn time is the current fact and stands in `memories`, with all turns of the
--   unbroken run of equal statements that it ends as its sources;
--   every statement before a later different one is `superseded`: history, never read as current.
-- The mark stays when an erase takes the later statement, and whatever was said before a marked one
-- is marked, too: what was once replaced never comes back.
--
-- Writers of a path stand in line at its content number, which they have moved before they call.

-- `p_work` as in apply_turns, accepted turns only; `p_numbers` the content number of each path.
create or replace function afterturn.write_facts(p_work jsonb, p_numbers jsonb) returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    paths text[];
    ids text[];
begin
    perform afterturn.write_plain_facts(p_work, p_numbers);
    with stated as (
        insert into afterturn.fact_statements as f (path, record_id, turn_path, turn_id, said_at,
            staged_at, digest, layer, origin, text, metadata, importance, recorded_at)
        -- A turn that states two things of one key means the last.
        select distinct on (r.row ->> 'path', r.row ->> 'record_id', t.path, t.turn_id)
            r.row ->> 'path', r.row ->> 'record_id', t.path, t.turn_id, t.happened_at,
            t.staged_at, decode(r.row ->> 'digest', 'hex'), r.row ->> 'layer',
            r.row ->> 'origin', r.row ->> 'text', r.row -> 'metadata',
            (r.row ->> 'importance')::double precision, afterturn.clock()
        from jsonb_array_elements(p_work) w,
            jsonb_array_elements(w -> 'records') with ordinality r(row, at),
            jsonb_array_elements(r.row -> 'sources') k
        join afterturn.turns t on t.path = k ->> 'turn_path' and t.turn_id = k ->> 'turn_id'
        where r.row ? 'key' and exists (select from jsonb_array_elements(p_work) o
            where o ->> 'path' = t.path and o ->> 'turn_id' = t.turn_id)
        order by r.row ->> 'path', r.row ->> 'record_id', t.path, t.turn_id, r.at desc
        on conflict (path, record_id, turn_path, turn_id) do update set
            said_at = excluded.said_at, staged_at = excluded.staged_at,
            digest = excluded.digest, layer = excluded.layer, origin = excluded.origin,
            text = excluded.text, metadata = excluded.metadata,
            importance = excluded.importance, recorded_at = excluded.recorded_at
        returning f.path, f.record_id)
    select coalesce(array_agg(s.path), '{}'), coalesce(array_agg(s.record_id), '{}')
    into paths, ids from (select distinct path, record_id from stated) s;
    if cardinality(ids) = 0 then
        return;
    end if;
    update afterturn.fact_statements f set superseded = true
    from unnest(paths, ids) k(path, record_id)
    where f.path = k.path and f.record_id = k.record_id and not f.superseded
        and (exists (select from afterturn.fact_statements l
            where l.path = f.path and l.record_id = f.record_id
                and (l.digest <> f.digest or l.superseded)
                and (l.said_at, l.staged_at, l.turn_path, l.turn_id)
                    > (f.said_at, f.staged_at, f.turn_path, f.turn_id))
            -- A later one of an erased scope was kept: its statement is gone, its row says when.
            or exists (select from afterturn.memories m
                join afterturn.memory_sources s on s.path = m.path
                    and s.record_id = m.record_id and not s.pending and s.turn_path < 'v'
                where m.path = f.path and m.record_id = f.record_id and not m.pending
                    and m.occurred_at > f.said_at and lower(m.text) <> lower(f.text)));
    perform afterturn.settle_facts(paths, ids, p_numbers);
end $$;

-- Makes the current facts of these keys what their statements say. A key whose latest statement
-- is gone or superseded has none; its row, if there is one, is left to the caller.
create or replace function afterturn.settle_facts(
    p_paths text[], p_ids text[], p_numbers jsonb) returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    written jsonb;
begin
    -- What was kept of an erased scope keeps its link to it until other words replace it.
    delete from afterturn.memory_sources s
    using unnest(p_paths, p_ids) k(path, record_id)
    join afterturn.memories m
        on m.path = k.path and m.record_id = k.record_id and not m.pending
    where s.path = k.path and s.record_id = k.record_id and not s.pending and s.turn_path < 'v'
        and exists (select from afterturn.fact_statements f where f.path = m.path
            and f.record_id = m.record_id and not f.superseded and lower(f.text) <> lower(m.text))
        and not exists (select from afterturn.fact_statements f where f.path = m.path
            and f.record_id = m.record_id and not f.superseded and lower(f.text) = lower(m.text));
    -- Where somebody has written the same words directly, theirs is the one row.
    select coalesce(jsonb_object_agg(l.path || l.record_id, true), '{}') into written
    from unnest(p_paths, p_ids) k(path, record_id), lateral (
        select f.* from afterturn.fact_statements f
        where f.path = k.path and f.record_id = k.record_id
        order by f.said_at desc, f.staged_at desc, f.turn_path desc, f.turn_id desc limit 1) l
    where exists (select from afterturn.memories w where w.path = l.path
        and md5(w.text) = md5(l.text) and w.text = l.text and w.origin <> 'turn'
        and w.record_id <> l.record_id and w.turn_id is null and not w.pending
        and w.layer <> 'working' and not exists (select from afterturn.memory_sources s
            where s.path = w.path and s.record_id = w.record_id and not s.pending));
    if written <> '{}' then
        perform from afterturn.move_content(p_paths, true);
        delete from afterturn.memories m using unnest(p_paths, p_ids) k(path, record_id)
        where m.path = k.path and m.record_id = k.record_id and not m.pending
            and written ? (m.path || m.record_id);
    end if;
    insert into afterturn.memories as m (path, record_id, pending, turn_path, turn_id, session,
        layer, origin, text, metadata, importance, occurred_at, recorded_at, content, revision)
    select l.path, l.record_id, false, l.turn_path, l.turn_id,
        (select t.session from afterturn.turns t
            where t.path = l.turn_path and t.turn_id = l.turn_id),
        l.layer, l.origin, l.text, l.metadata, l.importance, l.said_at, l.recorded_at,
        (p_numbers ->> l.path)::bigint, afterturn.draw_number()
    from (
        select distinct on (f.path, f.record_id) f.*
        from unnest(p_paths, p_ids) k(path, record_id)
        join afterturn.fact_statements f on f.path = k.path and f.record_id = k.record_id
        order by f.path, f.record_id, f.said_at desc, f.staged_at desc, f.turn_path desc,
            f.turn_id desc) l
    where not l.superseded and not written ? (l.path || l.record_id)
    on conflict (path, record_id, pending) do update set
        turn_path = excluded.turn_path, turn_id = excluded.turn_id, session = excluded.session,
        layer = excluded.layer, origin = excluded.origin, text = excluded.text,
        metadata = excluded.metadata, importance = excluded.importance,
        occurred_at = excluded.occurred_at, recorded_at = excluded.recorded_at,
        content = excluded.content,
        -- Another spelling of the same words is as near to a question as before.
        revision = case when lower(m.text) = lower(excluded.text) then m.revision
            else excluded.revision end,
        embedding = case when lower(m.text) = lower(excluded.text) then m.embedding end;
    delete from afterturn.memory_sources s using unnest(p_paths, p_ids) k(path, record_id)
    where s.path = k.path and s.record_id = k.record_id and not s.pending
        and (s.turn_path >= 'v' or written ? (s.path || s.record_id))
        and not exists (select from afterturn.fact_statements f
            where not written ? (s.path || s.record_id) and f.path = s.path and f.record_id = s.record_id and not f.superseded
                and f.turn_path = s.turn_path and f.turn_id = s.turn_id);
    insert into afterturn.memory_sources (path, record_id, pending, turn_path, turn_id)
    select f.path, f.record_id, false, f.turn_path, f.turn_id
    from unnest(p_paths, p_ids) k(path, record_id)
    join afterturn.fact_statements f on f.path = k.path and f.record_id = k.record_id
    where not f.superseded
        and exists (select from afterturn.memories m where m.path = f.path
            and m.record_id = f.record_id and not m.pending)
    on conflict do nothing;
end $$;

-- Facts without a key. One of the same words that stands already (under whatever id, but for notes
-- that expire) gets the new sources; one that was written directly has none and stays as it is.
-- The same id with other words: the later turn's count.
create or replace function afterturn.write_plain_facts(p_work jsonb, p_numbers jsonb)
returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    at timestamptz := afterturn.clock();
begin
    with given as materialized (
        select r.row ->> 'path' as path, r.row ->> 'record_id' as given_id,
            coalesce((select m.record_id from afterturn.memories m
                where m.path = r.row ->> 'path' and md5(m.text) = md5(r.row ->> 'text')
                    and m.text = r.row ->> 'text' and m.origin <> 'turn' and not m.pending
                    and m.layer <> 'working'
                order by m.record_id <> r.row ->> 'record_id', m.recorded_at, m.record_id
                limit 1), r.row ->> 'record_id') as record_id,
            t.path as turn_path, t.turn_id, t.happened_at, t.staged_at, r.row
        from jsonb_array_elements(p_work) w
        join afterturn.turns t on t.path = w ->> 'path' and t.turn_id = w ->> 'turn_id',
            jsonb_array_elements(w -> 'records') r(row)
        where not r.row ? 'key'),
    latest as materialized (
        select distinct on (g.path, g.record_id) g.*,
            m.record_id is not null as stands,
            m.text = g.row ->> 'text'
                or coalesce(g.record_id = 'fact:' || (g.row ->> 'digest'), false) as same,
            s.happened_at is null or (g.happened_at, g.staged_at, g.turn_path, g.turn_id)
                >= (s.happened_at, s.staged_at, s.path, s.turn_id) as newer,
            m.turn_id is null and not exists (select from afterturn.memory_sources k
                where k.path = m.path and k.record_id = m.record_id and not k.pending) as written
        from given g
        left join afterturn.memories m
            on m.path = g.path and m.record_id = g.record_id and not m.pending
        left join afterturn.turns s on s.path = m.turn_path and s.turn_id = m.turn_id
        order by g.path, g.record_id, g.happened_at desc, g.staged_at desc, g.turn_path desc,
            g.turn_id desc),
    accepted as materialized (
        select * from latest l
        where not l.stands or (l.same and not l.written) or (not l.same and l.newer)),
    changed as (
        update afterturn.memories m
        set turn_path = a.turn_path, turn_id = a.turn_id, session = a.row ->> 'session',
            layer = a.row ->> 'layer', origin = a.row ->> 'origin', text = a.row ->> 'text',
            metadata = a.row -> 'metadata',
            importance = (a.row ->> 'importance')::double precision,
            occurred_at = (a.row ->> 'occurred_at')::timestamptz, recorded_at = at,
            revision = case when m.text = a.row ->> 'text' then m.revision
                else afterturn.draw_number() end,
            embedding = case when m.text = a.row ->> 'text' then m.embedding end,
            content = (p_numbers ->> m.path)::bigint
        from accepted a
        where a.stands and a.newer and m.path = a.path and m.record_id = a.record_id
            and not m.pending),
    touched as (
        update afterturn.memories m set content = (p_numbers ->> m.path)::bigint
        from accepted a
        where a.stands and not a.newer and m.path = a.path and m.record_id = a.record_id
            and not m.pending),
    added as (
        insert into afterturn.memories (path, record_id, pending, turn_path, turn_id, session,
            layer, origin, text, metadata, importance, occurred_at, recorded_at, content, revision)
        select a.path, a.record_id, false, a.turn_path, a.turn_id, a.row ->> 'session',
            a.row ->> 'layer', a.row ->> 'origin', a.row ->> 'text', a.row -> 'metadata',
            (a.row ->> 'importance')::double precision, (a.row ->> 'occurred_at')::timestamptz,
            at, (p_numbers ->> a.path)::bigint, afterturn.draw_number()
        from accepted a where not a.stands
        on conflict do nothing),
    sourced as materialized (
        select distinct g.path, g.record_id, k ->> 'turn_path' as turn_path,
            k ->> 'turn_id' as turn_id
        from accepted a
        join given g on g.path = a.path and g.record_id = a.record_id
            and (g.row ->> 'text' = a.row ->> 'text' or g.row ->> 'digest' = a.row ->> 'digest'),
            jsonb_array_elements(g.row -> 'sources') k),
    replaced as (
        delete from afterturn.memory_sources s using accepted a
        where a.stands and not a.same and s.path = a.path and s.record_id = a.record_id
            and not s.pending
            and not exists (select from sourced k where k.path = s.path
                and k.record_id = s.record_id and k.turn_path = s.turn_path
                and k.turn_id = s.turn_id))
    insert into afterturn.memory_sources (path, record_id, pending, turn_path, turn_id)
    select s.path, s.record_id, false, s.turn_path, s.turn_id from sourced s
    on conflict do nothing;
end $$;

-- The statements that an erase takes: of all turns under the scope, or of the named ones in it.
create or replace function afterturn.statements_of(p_path text, p_turn_ids text[])
returns setof afterturn.fact_statements
language sql stable as $$
    select f.* from afterturn.fact_statements f
    where p_turn_ids is null
        and f.turn_path >= p_path and f.turn_path < afterturn.under_end(p_path)
    union all
    select f.* from afterturn.fact_statements f
    where f.turn_path = p_path and f.turn_id = any(p_turn_ids)
$$;

-- Takes those of them at `p_paths`. With `p_settle` current facts that keep a source then say what
-- the latest of their turns says; without, they stay as they are (they were to be kept).
create or replace function afterturn.forget_statements(
    p_id bigint, p_path text, p_turn_ids text[], p_paths text[], p_settle boolean)
returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    paths text[];
    ids text[];
    gone integer;
begin
    with taken as (
        delete from afterturn.fact_statements f
        using afterturn.statements_of(p_path, p_turn_ids) k
        where f.path = any(p_paths) and f.path = k.path and f.record_id = k.record_id
            and f.turn_path = k.turn_path and f.turn_id = k.turn_id
        returning f.path, f.record_id)
    select count(*), array_agg(t.path), array_agg(t.record_id) into gone, paths, ids from taken t;
    perform afterturn.count_rows(p_id, 'fact_statements', gone);
    if gone = 0 or not p_settle then
        return;
    end if;
    select coalesce(array_agg(m.path), '{}'), coalesce(array_agg(m.record_id), '{}')
    into paths, ids
    from (select distinct k.path, k.record_id from unnest(paths, ids) k(path, record_id)) k
    join afterturn.memories m
        on m.path = k.path and m.record_id = k.record_id and not m.pending
    where exists (select from afterturn.fact_statements f where f.path = m.path
        and f.record_id = m.record_id and not f.superseded);
    perform afterturn.settle_facts(paths, ids, (
        select coalesce(jsonb_object_agg(p.path, g.content), '{}')
        from (select distinct unnest(paths) as path) p
        join afterturn.scope_generations g on g.scope_key = afterturn.scope_key(p.path)));
end $$;

-- The facts of this scope that a model may be shown beside its new turns: the latest ones with a
-- key, of exactly this path.
create or replace function afterturn.related_facts(p_path text, p_limit integer)
returns setof afterturn.memories
language sql stable as $$
    select m.* from afterturn.memories m
    where m.path = p_path and not m.pending and m.origin <> 'turn'
        and m.metadata ? 'subject' and m.metadata ? 'attribute'
        and not afterturn.erasing(afterturn.covering(p_path))
    order by m.content desc limit p_limit
$$;

-- Counts a model call by the root of its scope. When the jobs it was made for are no longer
-- held an erase may have taken the scope: it is then counted where no scope is named.
create or replace function afterturn.count_usage(
    p_path text, p_ids bigint[], p_leases uuid[], p_calls bigint, p_prompt bigint,
    p_completion bigint) returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    root text := (afterturn.covering(p_path))[1];
begin
    perform afterturn.lock_shared(array[root]);
    if afterturn.erasing(array[root]) or not exists (
        select from afterturn.jobs j join unnest(p_ids, p_leases) h(id, lease)
            on j.id = h.id and j.lease_token = h.lease
        where j.finished_at is null)
    then
        root := '';
    end if;
    insert into afterturn.token_usage as u (path, calls, prompt_tokens, completion_tokens)
    values (root, p_calls, p_prompt, p_completion)
    on conflict (path) do update set calls = u.calls + excluded.calls,
        prompt_tokens = u.prompt_tokens + excluded.prompt_tokens,
        completion_tokens = u.completion_tokens + excluded.completion_tokens;
end $$;

-- The usage of roots that are erased stays counted, without their names.
create or replace function afterturn.forget_usage(p_path text) returns void
language sql as $$
    with gone as (
        delete from afterturn.token_usage u
        where u.path >= p_path and u.path < afterturn.under_end(p_path)
        returning u.calls, u.prompt_tokens, u.completion_tokens)
    insert into afterturn.token_usage as u (path, calls, prompt_tokens, completion_tokens)
    select '', sum(g.calls), sum(g.prompt_tokens), sum(g.completion_tokens)
    from gone g having count(*) > 0
    on conflict (path) do update set calls = u.calls + excluded.calls,
        prompt_tokens = u.prompt_tokens + excluded.prompt_tokens,
        completion_tokens = u.completion_tokens + excluded.completion_tokens
$$;
