-- The erase. Its intent stands from the request on; chunks commit as they go and a crash resumes;
-- the final transaction holds the scope alone, erases what is left, moves the numbers, and is the
-- only one after which the scope can be used again.

-- What a crash takes back of chunks is done again: only the request and the final transaction wait
-- for the disk.
create or replace function afterturn.hold_chunk(
    p_id bigint, p_path text, p_lease_token uuid, p_lease interval) returns boolean
language plpgsql set plan_cache_mode = force_generic_plan as $$
begin
    perform set_config('synchronous_commit', 'off', true);
    return afterturn.hold(p_id, 'forget', p_path, p_lease_token, p_lease);
end $$;

-- Whether there is more under the scope than one chunk: less is left to the final transaction.
create or replace function afterturn.needs_chunks(p_path text, p_limit integer) returns boolean
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    beyond text := afterturn.under_end(p_path);
begin
    return (
        select count(*) > p_limit from (
            (select from afterturn.turns t
            where t.path >= p_path and t.path < beyond limit p_limit + 1)
            union all
            (select from afterturn.memories m
            where m.path >= p_path and m.path < beyond limit p_limit + 1)
            union all
            (select from afterturn.memory_sources s
            where s.path >= p_path and s.path < beyond limit p_limit + 1)
            union all
            (select from afterturn.fact_statements f
            where f.path >= p_path and f.path < beyond limit p_limit + 1)
            union all
            (select from afterturn.jobs j
            where j.path >= p_path and j.path < beyond
                and j.kind in ('record', 'extract', 'embed') limit p_limit + 1)
            union all
            (select from afterturn.jobs j
            where j.path >= p_path and j.path < beyond and j.finished_at is null
                and j.kind in ('flush', 'forget', 'expire') limit p_limit + 1)) every);
end $$;

-- Whether another session of this database has done anything lately. A role that may not see what
-- others do takes them to be at work.
create or replace function afterturn.others_worked(p_lately interval) returns boolean
language plpgsql set plan_cache_mode = force_generic_plan as $$
begin
    return exists (
        select from pg_stat_get_activity(null) a
        where a.pid <> pg_backend_pid()
            and a.datid = (select d.oid from pg_database d where d.datname = current_database())
            and coalesce(a.backend_type, 'client backend') = 'client backend'
            and coalesce(
                a.state = 'active' or a.state_change > clock_timestamp() - p_lately, true));
end $$;

-- Ends up to p_limit unfinished flushes that the erase covers and that were enqueued before it.
-- Null: the lease is lost.
create or replace function afterturn.forget_flushes(
    p_id bigint, p_lease_token uuid, p_path text, p_limit integer, p_lease interval)
returns integer
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    covered bigint;
    ended integer := 0;
begin
    if not afterturn.hold_chunk(p_id, p_path, p_lease_token, p_lease) then
        return null;
    end if;
    for covered in
        select j.id from afterturn.jobs j
        where j.finished_at is null and j.id = any(array(
            select q.id from afterturn.jobs q
            where q.finished_at is null and q.kind = 'flush' and q.id < p_id
                and q.path >= p_path and q.path < afterturn.under_end(p_path)))
        order by j.id limit p_limit for update skip locked
    loop
        perform afterturn.end_lifecycle(covered, 'superseded', '{}');
        ended := ended + 1;
    end loop;
    return ended;
end $$;

-- Deletes up to p_limit rows after the start key, in the direction in which text moves (turns,
-- then memories). Never waits for a row. Null `rows`: the lease is lost. The start key keeps a
-- later chunk from walking the dead rows of the former ones. Where something learned elsewhere is
-- kept, its turns are left to the final transaction: it asks them for their session.
create or replace function afterturn.forget_turns(
    p_id bigint, p_lease_token uuid, p_path text, p_limit integer, p_lease interval,
    p_after_path text, p_after_id text, out rows integer, out last_path text, out last_id text)
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    beyond text := afterturn.under_end(p_path);
    keeps boolean := (
        select j.request ->> 'derived' is distinct from 'erase' from afterturn.jobs j
        where j.id = p_id);
begin
    if not afterturn.hold_chunk(p_id, p_path, p_lease_token, p_lease) then
        return;
    end if;
    with gone as (
        delete from afterturn.turns t where t.ctid = any(array(
            select w.ctid from afterturn.turns w
            where w.path >= p_path and w.path < beyond
                and (w.path, w.turn_id) > (p_after_path, p_after_id)
                and not (keeps and exists (
                    select from afterturn.memory_sources s
                    where s.turn_path = w.path and s.turn_id = w.turn_id
                        and (s.path < p_path or s.path >= beyond)))
            order by w.path, w.turn_id limit p_limit for update skip locked))
        returning t.path, t.turn_id)
    select count(*), (array_agg(g.path order by g.path desc, g.turn_id desc))[1],
        (array_agg(g.turn_id order by g.path desc, g.turn_id desc))[1]
    into rows, last_path, last_id from gone g;
    perform afterturn.count_rows(p_id, 'turns', rows);
end $$;

create or replace function afterturn.forget_memories(
    p_id bigint, p_lease_token uuid, p_path text, p_limit integer, p_lease interval,
    p_after_path text, p_after_id text, out rows integer, out last_path text, out last_id text)
language plpgsql set plan_cache_mode = force_generic_plan as $$
begin
    if not afterturn.hold_chunk(p_id, p_path, p_lease_token, p_lease) then
        return;
    end if;
    with gone as (
        delete from afterturn.memories m where m.ctid = any(array(
            select w.ctid from afterturn.memories w
            where w.path >= p_path and w.path < afterturn.under_end(p_path)
                and (w.path, w.record_id) > (p_after_path, p_after_id)
            order by w.path, w.record_id limit p_limit for update skip locked))
        returning m.path, m.record_id)
    select count(*), (array_agg(g.path order by g.path desc, g.record_id desc))[1],
        (array_agg(g.record_id order by g.path desc, g.record_id desc))[1]
    into rows, last_path, last_id from gone g;
    perform afterturn.count_rows(p_id, 'memories', rows);
end $$;

-- What the records under the scope were learned from, likewise.
create or replace function afterturn.forget_sources(
    p_id bigint, p_lease_token uuid, p_path text, p_limit integer, p_lease interval,
    p_after_path text, p_after_id text, out rows integer, out last_path text, out last_id text)
language plpgsql set plan_cache_mode = force_generic_plan as $$
begin
    if not afterturn.hold_chunk(p_id, p_path, p_lease_token, p_lease) then
        return;
    end if;
    with gone as (
        delete from afterturn.memory_sources s where s.ctid = any(array(
            select w.ctid from afterturn.memory_sources w
            where w.path >= p_path and w.path < afterturn.under_end(p_path)
                and (w.path, w.record_id) >= (p_after_path, p_after_id)
            order by w.path, w.record_id limit p_limit for update skip locked))
        returning s.path, s.record_id)
    select count(*), (array_agg(g.path order by g.path desc, g.record_id desc))[1],
        (array_agg(g.record_id order by g.path desc, g.record_id desc))[1]
    into rows, last_path, last_id from gone g;
    perform afterturn.count_rows(p_id, 'memory_sources', rows);
end $$;

-- What facts with a key have said, likewise.
create or replace function afterturn.forget_said(
    p_id bigint, p_lease_token uuid, p_path text, p_limit integer, p_lease interval,
    p_after_path text, p_after_id text, out rows integer, out last_path text, out last_id text)
language plpgsql set plan_cache_mode = force_generic_plan as $$
begin
    if not afterturn.hold_chunk(p_id, p_path, p_lease_token, p_lease) then
        return;
    end if;
    with gone as (
        delete from afterturn.fact_statements f where f.ctid = any(array(
            select w.ctid from afterturn.fact_statements w
            where w.path >= p_path and w.path < afterturn.under_end(p_path)
                and (w.path, w.record_id) >= (p_after_path, p_after_id)
            order by w.path, w.record_id limit p_limit for update skip locked))
        returning f.path, f.record_id)
    select count(*), (array_agg(g.path order by g.path desc, g.record_id desc))[1],
        (array_agg(g.record_id order by g.path desc, g.record_id desc))[1]
    into rows, last_path, last_id from gone g;
    perform afterturn.count_rows(p_id, 'fact_statements', rows);
end $$;

-- The ledger's rows of turns and embed jobs under the scope, up to p_limit. Null: lease lost.
create or replace function afterturn.forget_turn_jobs(
    p_id bigint, p_lease_token uuid, p_path text, p_limit integer, p_lease interval)
returns integer
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    gone integer;
begin
    if not afterturn.hold_chunk(p_id, p_path, p_lease_token, p_lease) then
        return null;
    end if;
    delete from afterturn.jobs j where j.id = any(array(
        select w.id from afterturn.jobs w
        where w.path >= p_path and w.path < afterturn.under_end(p_path)
            and w.kind in ('record', 'extract', 'embed')
        order by w.id limit p_limit for update skip locked));
    get diagnostics gone = row_count;
    perform afterturn.count_rows(p_id, 'jobs', gone);
    return gone;
end $$;

-- What stands in place of an erased scope's path, or of a turn or a session in it, where something
-- learned from it was kept elsewhere: a keyed hash. Whoever knows the path finds it again, nobody
-- can read it. (No path of a scope begins like this.)
create or replace function afterturn.link(p_path text, p_what text) returns text
language plpgsql stable as $$
begin
    return 'erased/' || encode(afterturn.scope_key(p_path || p_what), 'hex') || '/';
end $$;

-- The sources that an erase takes: all under the scope, or those of the named turns and session
-- in it; also those of which an earlier erase has kept no more than a link.
create or replace function afterturn.sources_of(
    p_path text, p_turn_ids text[], p_session text)
returns setof afterturn.memory_sources
language sql stable as $$
    select s.* from afterturn.memory_sources s
    where p_turn_ids is null
        and s.turn_path >= p_path and s.turn_path < afterturn.under_end(p_path)
    union all
    select s.* from afterturn.memory_sources s
    where s.turn_path = p_path and s.turn_id = any(p_turn_ids)
    union all
    select s.* from afterturn.memory_sources s
    where p_turn_ids is null and s.turn_path = afterturn.link(p_path, 'under')
    union all
    select s.* from afterturn.memory_sources s
    where s.turn_path = afterturn.link(p_path, 'turn') and s.turn_id = any(p_turn_ids || array(
        select afterturn.named_key(p_path, 'turn', t.id) from unnest(p_turn_ids) t(id)))
    union all
    select s.* from afterturn.memory_sources s
    where s.turn_path = afterturn.link(p_path, 'session ' || p_session)
$$;

-- The scopes outside the erased one where something was learned from what goes. Read as `forget_rest`
-- reads, for the same reason.
create or replace function afterturn.outside_paths(
    p_path text, p_turn_ids text[], p_session text) returns text[]
language sql stable set enable_indexscan = off set enable_seqscan = off as $$
    select array(
        select distinct s.path from (
            select q.path from afterturn.sources_of(p_path, p_turn_ids, p_session) q
            union all
            select f.path from afterturn.statements_of(p_path, p_turn_ids) f) s
        where s.path <> p_path and (p_turn_ids is not null
            or not (s.path >= p_path and s.path < afterturn.under_end(p_path)))
        order by 1)
$$;

-- A record's metadata once it is of that session, or of none.
create or replace function afterturn.of_session(p_metadata jsonb, p_session text) returns jsonb
language sql immutable as $$
    select case when not p_metadata ? 'session' then p_metadata
        when p_session is null then p_metadata - 'session'
        else jsonb_set(p_metadata, '{session}', to_jsonb(p_session)) end
$$;

-- Takes the erased turns out of the sources of what was learned from them elsewhere (and, for a
-- named erase, in the scope itself). Records left without a source go; the others stand on the
-- sources they keep, and what was noted beside their words by an erased turn goes. Returns how many
-- records were erased.
create or replace function afterturn.forget_derived(
    p_id bigint, p_path text, p_turn_ids text[], p_session text, p_paths text[]) returns integer
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    erased integer;
begin
    with taken as (
        delete from afterturn.memory_sources s
        using (select distinct q.path, q.record_id, q.pending, q.turn_path, q.turn_id,
                   q.turn_path < 'v' as linked
               from afterturn.sources_of(p_path, p_turn_ids, p_session) q) k
        where s.path = any(p_paths) and s.path = k.path and s.record_id = k.record_id
            and s.pending = k.pending and s.turn_id = k.turn_id
            -- All links of one turn go together.
            and (s.turn_path = k.turn_path or k.linked and s.turn_path < 'v')
        returning s.path, s.record_id, s.pending, s.turn_path, s.turn_id),
    left_over as (
        select t.path, t.record_id, t.pending, count(k.turn_id) > 0 as rests,
            min(array[k.turn_path, k.turn_id]) filter (where k.turn_path >= 'v') as source
        from (select distinct path, record_id, pending from taken) t
        left join afterturn.memory_sources k on k.path = t.path and k.record_id = t.record_id
            and k.pending = t.pending
            and not exists (select from taken x where x.path = k.path
                and x.record_id = k.record_id and x.pending = k.pending
                and x.turn_path = k.turn_path and x.turn_id = k.turn_id)
        group by t.path, t.record_id, t.pending),
    kept as (
        update afterturn.memories m
        set turn_path = coalesce(l.source[1], m.path), turn_id = l.source[2], session = t.session,
            metadata = case when exists (
                    select from taken x where x.path = m.path and x.record_id = m.record_id
                        and x.pending = m.pending and (x.turn_path < 'v'
                            or (x.turn_path = m.turn_path and x.turn_id = m.turn_id)))
                -- A key belongs to the fact; `forget_statements` makes it say what is left.
                then coalesce((select jsonb_object_agg(k, m.metadata -> k)
                    from unnest(array['subject', 'attribute']) k
                    where m.metadata ? k and exists (select from afterturn.fact_statements f
                        where f.path = m.path and f.record_id = m.record_id)), '{}')
                else afterturn.of_session(m.metadata, t.session) end,
            content = case when m.pending then m.content else (
                select g.content from afterturn.scope_generations g
                where g.scope_key = afterturn.scope_key(m.path)) end
        from left_over l
        left join afterturn.turns t on t.path = l.source[1] and t.turn_id = l.source[2]
        where l.rests and m.path = l.path and m.record_id = l.record_id
            and m.pending = l.pending),
    gone as (
        delete from afterturn.memories m using left_over l
        where not l.rests and m.path = l.path and m.record_id = l.record_id
            and m.pending = l.pending
        returning 1)
    select count(*) into erased from gone;
    perform afterturn.count_rows(p_id, 'derived', erased);
    perform afterturn.forget_statements(p_id, p_path, p_turn_ids, p_paths, true);
    return erased;
end $$;

-- With `derived = "keep"`: what was learned outside stays and stands on its other sources, or on
-- none. In place of the erased ones it keeps links (to every scope that covers the turn and not
-- the record, to the turn, to its session), by which a later erase of any of these finds it. The
-- turn's id is a keyed hash there, too.
create or replace function afterturn.keep_derived(
    p_path text, p_turn_ids text[], p_session text) returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
begin
    with cut as (
        delete from afterturn.memory_sources s
        using (select distinct q.path, q.record_id, q.pending, q.turn_path, q.turn_id
               from afterturn.sources_of(p_path, p_turn_ids, p_session) q) k
        where s.path = k.path and s.record_id = k.record_id and s.pending = k.pending
            and s.turn_path = k.turn_path and s.turn_id = k.turn_id and s.turn_path >= 'v'
            and s.path <> p_path and (p_turn_ids is not null
                or not (s.path >= p_path and s.path < afterturn.under_end(p_path)))
        returning s.path, s.record_id, s.pending, s.turn_path, s.turn_id),
    said as (
        select c.*, (
            select t.session from afterturn.turns t
            where t.path = c.turn_path and t.turn_id = c.turn_id) as session
        from cut c),
    linked as (
        insert into afterturn.memory_sources (path, record_id, pending, turn_path, turn_id)
        select d.path, d.record_id, d.pending, l.link,
            afterturn.named_key(d.turn_path, 'turn', d.turn_id) from said d, lateral (
            select afterturn.link(v.path, 'under')
            from unnest(afterturn.covering(d.turn_path)) v(path)
            where not v.path = any(afterturn.covering(d.path))
            union all
            select afterturn.link(d.turn_path, 'turn')
            union all
            select afterturn.link(d.turn_path, 'session ' || d.session)
            where d.session is not null) l(link)
        on conflict do nothing),
    left_over as (
        select d.path, d.record_id, d.pending,
            min(array[k.turn_path, k.turn_id]) filter (where k.turn_path >= 'v') as source
        from (select distinct path, record_id, pending from cut) d
        left join afterturn.memory_sources k on k.path = d.path and k.record_id = d.record_id
            and k.pending = d.pending
            and not exists (select from cut x where x.path = k.path
                and x.record_id = k.record_id and x.pending = k.pending
                and x.turn_path = k.turn_path and x.turn_id = k.turn_id)
        group by d.path, d.record_id, d.pending)
    update afterturn.memories m
    set turn_path = coalesce(l.source[1], m.path), turn_id = l.source[2],
        session = t.session, metadata = afterturn.of_session(m.metadata, t.session),
        content = case when m.pending then m.content else (
            select g.content from afterturn.scope_generations g
            where g.scope_key = afterturn.scope_key(m.path)) end
    from left_over l
    left join afterturn.turns t on t.path = l.source[1] and t.turn_id = l.source[2]
    where m.path = l.path and m.record_id = l.record_id and m.pending = l.pending;
end $$;

-- Turns acknowledged before, under an advanced scope and not themselves erased, get the numbers
-- that hold now; work under way on them loses its lease, is refused, and is done again.
create or replace function afterturn.refresh_tokens(p_path text) returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
begin
    update afterturn.jobs j
    set lease_token = null, attempts = greatest(j.attempts - 1, 0),
        ready_at = afterturn.clock(), ring_at = afterturn.clock()
    where j.finished_at is null and j.kind in ('record', 'extract') and j.lease_token is not null
        and j.path >= p_path and j.path < afterturn.under_end(p_path);
    update afterturn.turns t
    set token = afterturn.token_of(afterturn.covering(t.path))
    where (t.path, t.turn_id) in (
        select j.path, j.turn_id from afterturn.jobs j
        where j.finished_at is null and j.kind in ('record', 'extract')
            and j.path >= p_path and j.path < afterturn.under_end(p_path));
end $$;

-- The turn ids that a named erase takes: those named, those of the named session. Null: the
-- request names nothing and takes everything under the scope.
create or replace function afterturn.named_turns(p_path text, p_request jsonb) returns text[]
language sql stable as $$
    select case when p_request ? 'named' then array(
        select jsonb_array_elements_text(p_request -> 'named' -> 'turn_ids')
        union
        select t.turn_id from afterturn.turns t
        where t.path = p_path and t.session = p_request -> 'named' ->> 'session'
        order by 1) end
$$;

-- The messages for which named records stand: turn and speaker of those that are one side of a turn.
create or replace function afterturn.sides_of(p_path text, p_record_ids text[])
returns table (turn_id text, speaker text)
language sql stable as $$
    select m.turn_id, m.metadata ->> 'speaker' from afterturn.memories m
    where m.path = p_path and m.record_id = any(p_record_ids) and m.turn_path = p_path
        and m.origin = 'turn' and m.turn_id is not null
    union
    -- Of a turn that is not recorded yet: the ids of its records are known from its own.
    select t.turn_id, n.parts[2] from unnest(p_record_ids) r(id),
        lateral (select regexp_match(r.id,
            '^(.+):(user|assistant):(?:working|episodic)$') as parts) n
    join afterturn.turns t on t.path = p_path and t.turn_id = n.parts[1]
        and t.recorded_at is null
$$;

-- The turns of which something is named: what was learned from them is judged anew. Null: everything
-- under the scope is erased.
create or replace function afterturn.heard_turns(p_path text, p_request jsonb) returns text[]
language sql stable as $$
    select case when p_request ? 'named' then array(
        select unnest(afterturn.named_turns(p_path, p_request))
        union
        select s.turn_id from afterturn.sides_of(p_path, array(
            select jsonb_array_elements_text(p_request -> 'named' -> 'record_ids'))) s
        order by 1) end
$$;

-- Turns that lost one side and had been extracted are extracted again from the other: what was
-- learned from both is gone with the one.
create or replace function afterturn.extract_again(p_path text, p_turn_ids text[]) returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    at timestamptz := afterturn.clock();
begin
    with again as (
        update afterturn.turns t
        set outcome = 'waiting', extracted = null, extracted_at = null
        where t.path = p_path and t.turn_id = any(p_turn_ids) and t.outcome = 'done'
            and (t.query is not null or t.answer is not null)
        returning t.turn_id)
    insert into afterturn.jobs (kind, path, turn_id, ready_at, ring_at, created_at)
    select 'extract', p_path, a.turn_id, at, at, at from again a order by a.turn_id;
end $$;

-- Erases what is named at exactly this scope: turns with all that was made of them there, a
-- session, and records. A record that is one side of a turn stands for the message: its other
-- layer and that side of the transcript go with it.
create or replace function afterturn.forget_named(
    p_id bigint, p_path text, p_request jsonb, p_turn_ids text[]) returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    record_ids text[] := array(
        select jsonb_array_elements_text(p_request -> 'named' -> 'record_ids'));
    gone integer;
    gone_sources integer;
begin
    with sides as materialized (select * from afterturn.sides_of(p_path, record_ids)),
    silenced as (
        update afterturn.turns t
        set query = case when s.heard ? 'user' then null else t.query end,
            answer = case when s.heard ? 'assistant' then null else t.answer end
        from (select turn_id, jsonb_object_agg(speaker, true) as heard from sides
              group by turn_id) s
        where t.path = p_path and t.turn_id = s.turn_id)
    select coalesce(array_agg(m.record_id), '{}') || record_ids into record_ids
    from afterturn.memories m join sides s on m.turn_id = s.turn_id
        and m.metadata ->> 'speaker' = s.speaker
    where m.path = p_path and m.turn_path = p_path and m.origin = 'turn';
    -- Facts of the same words that a named record stands for (`settle_facts`) go with it.
    record_ids := record_ids || array(
        select distinct f.record_id from afterturn.fact_statements f
        join afterturn.memories m on m.path = f.path and m.text = f.text and m.origin <> 'turn'
        where f.path = p_path and m.record_id = any(record_ids) and not f.superseded
            and not exists (select from afterturn.memories w where w.path = f.path
                and w.record_id = f.record_id and not w.pending));
    with lost as (
        delete from afterturn.memories m
        where m.path = p_path and (m.record_id = any(record_ids)
            or ((m.turn_path = p_path and m.turn_id = any(p_turn_ids)
                    or m.session = p_request -> 'named' ->> 'session')
                -- What was learned may rest on other turns, too: forget_derived judges it.
                and not exists (select from afterturn.memory_sources s where s.path = m.path
                    and s.record_id = m.record_id and s.pending = m.pending)))
        returning m.record_id, m.pending),
    unsourced as (
        delete from afterturn.memory_sources s using lost l
        where s.path = p_path and s.record_id = l.record_id and s.pending = l.pending
        returning 1)
    select (select count(*) from lost), (select count(*) from unsourced)
    into gone, gone_sources;
    perform afterturn.count_rows(p_id, 'memories', gone);
    perform afterturn.count_rows(p_id, 'memory_sources', gone_sources);
    delete from afterturn.fact_statements f
    where f.path = p_path and f.record_id = any(record_ids);
    get diagnostics gone = row_count;
    perform afterturn.count_rows(p_id, 'fact_statements', gone);
    delete from afterturn.turns t where t.path = p_path and t.turn_id = any(p_turn_ids);
    get diagnostics gone = row_count;
    perform afterturn.count_rows(p_id, 'turns', gone);
    delete from afterturn.jobs j
    where j.path = p_path and j.turn_id = any(p_turn_ids) and j.kind in ('record', 'extract');
    get diagnostics gone = row_count;
    perform afterturn.count_rows(p_id, 'jobs', gone);
end $$;

-- Everything under the scope that the chunks left, each table a statement of its own, and the
-- readable path of the lifecycle jobs that ended there. What the chunks deleted still lies in the
-- indexes: in the order of an index each dead row would be looked up by itself, nine seconds of them
-- in a million, with the scope held.
create or replace function afterturn.forget_rest(p_id bigint, p_path text) returns void
language plpgsql set plan_cache_mode = force_generic_plan
    set enable_indexscan = off set enable_seqscan = off as $$
declare
    gone integer;
begin
    delete from afterturn.turns t
    where t.path >= p_path and t.path < afterturn.under_end(p_path);
    get diagnostics gone = row_count;
    perform afterturn.count_rows(p_id, 'turns', gone);
    delete from afterturn.memories m
    where m.path >= p_path and m.path < afterturn.under_end(p_path) and m.pending;
    get diagnostics gone = row_count;
    perform afterturn.count_rows(p_id, 'memories', gone);
    delete from afterturn.memories m
    where m.path >= p_path and m.path < afterturn.under_end(p_path);
    get diagnostics gone = row_count;
    perform afterturn.count_rows(p_id, 'memories', gone);
    delete from afterturn.memory_sources s
    where s.path >= p_path and s.path < afterturn.under_end(p_path);
    get diagnostics gone = row_count;
    perform afterturn.count_rows(p_id, 'memory_sources', gone);
    delete from afterturn.fact_statements f
    where f.path >= p_path and f.path < afterturn.under_end(p_path);
    get diagnostics gone = row_count;
    perform afterturn.count_rows(p_id, 'fact_statements', gone);
    perform afterturn.forget_usage(p_path);
    delete from afterturn.jobs j
    where j.path >= p_path and j.path < afterturn.under_end(p_path)
        and j.kind in ('record', 'extract', 'embed');
    get diagnostics gone = row_count;
    perform afterturn.count_rows(p_id, 'jobs', gone);
    update afterturn.jobs j
    set path = null, path_key = afterturn.scope_key(j.path), request = '{}'
    where j.path >= p_path and j.path < afterturn.under_end(p_path)
        and j.finished_at is not null and j.kind in ('flush', 'forget', 'expire');
    perform afterturn.count_rows(p_id, 'schedules', afterturn.forget_schedules(p_path));
end $$;

-- Locks the pending records that an erase will touch, under the scope and outside it, before any
-- number moves: whoever flushes or writes outside holds them before the numbers and the sources.
create or replace function afterturn.hold_pending(
    p_path text, p_turn_ids text[], p_session text, p_outside text[]) returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
begin
    perform from afterturn.memories m
    join (
        select w.path, w.record_id from afterturn.memories w
        where w.pending and w.path >= p_path and w.path < afterturn.under_end(p_path)
            and (p_turn_ids is null or w.path = p_path)
        union
        select s.path, s.record_id from afterturn.sources_of(p_path, p_turn_ids, p_session) s
        where s.pending and s.path = any(p_outside)) k
        on m.path = k.path and m.record_id = k.record_id
    where m.pending
    order by m.path, m.record_id for update of m;
end $$;

-- The scopes by whose locks these are held. Each lock takes a place in a table that all sessions
-- of the server share: for many scopes, their roots.
create or replace function afterturn.lock_places(p_paths text[]) returns text[]
language sql immutable as $$
    select case when cardinality(p_paths) <= 100 then p_paths else array(
        select distinct (afterturn.covering(p.path))[1] from unnest(p_paths) p(path) order by 1) end
$$;

-- The last transaction. `verdict` is busy (somebody holds a lock: end the transaction, wait a
-- little, try again), reembedding (the same, until the change of the model is done), lost, or done.
create or replace function afterturn.forget_final(
    p_id bigint, p_lease_token uuid, p_path text, p_lease interval,
    out verdict text, out receipt jsonb)
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    job afterturn.jobs;
    named boolean;
    keeps boolean;
    named_session text;
    turn_ids text[];
    heard_ids text[];  -- those of which something is named, and all of turn_ids
    source_ids text[];  -- those of which what was learned elsewhere goes
    outside text[];
    alone text[] := array[p_path];
    outside_count integer := 0;
    advanced text;
    covered bigint;
    generation bigint;
    head bytea;
begin
    perform afterturn.require_read_committed();
    perform afterturn.require_durable_commit();
    if not pg_try_advisory_xact_lock_shared(1634100325, 1) then
        verdict := 'reembedding';
        return;
    end if;
    select * into job from afterturn.jobs j where j.id = p_id;
    named := job.request ? 'named';
    keeps := job.request ->> 'derived' is distinct from 'erase';
    named_session := job.request -> 'named' ->> 'session';
    turn_ids := afterturn.named_turns(p_path, job.request);
    heard_ids := afterturn.heard_turns(p_path, job.request);
    source_ids := case when keeps then turn_ids else heard_ids end;
    outside := afterturn.outside_paths(p_path, source_ids, named_session);
    -- What is only relinked outside needs the lock that every writer there takes, no more.
    if keeps then
        perform afterturn.lock_shared(
            afterturn.lock_places(outside) || trim_array(afterturn.covering(p_path), 1));
    else
        alone := alone || outside;
    end if;
    if not afterturn.try_lock_exclusive(afterturn.lock_places(alone)) then
        verdict := 'busy';
        return;
    end if;
    -- Again, now that nobody can add to it.
    turn_ids := afterturn.named_turns(p_path, job.request);
    heard_ids := afterturn.heard_turns(p_path, job.request);
    source_ids := case when keeps then turn_ids else heard_ids end;
    if not afterturn.outside_paths(p_path, source_ids, named_session) <@ outside then
        verdict := 'busy';
        return;
    end if;
    if not afterturn.hold(p_id, 'forget', p_path, p_lease_token, p_lease) then
        verdict := 'lost';
        return;
    end if;
    if not named then
        -- Never waited for: who wakes a flush holds it, and may wait for the one before it or for us.
        for covered in
            select j.id from afterturn.jobs j
            where j.finished_at is null and j.kind = 'flush' and j.id < p_id
                and j.path >= p_path and j.path < afterturn.under_end(p_path)
            order by j.id for update skip locked
        loop
            perform afterturn.end_lifecycle(covered, 'superseded', '{}');
        end loop;
        if exists (
            select from afterturn.jobs j
            where j.finished_at is null and j.kind = 'flush' and j.id < p_id
                and j.path >= p_path and j.path < afterturn.under_end(p_path))
        then
            verdict := 'busy';
            return;
        end if;
    end if;
    perform from afterturn.jobs j
    where j.id = any(array(
        -- Offset 0 keeps it one index range a path, not one pass over all turns' jobs.
        select t.id from unnest(alone) o(path), lateral (
            select q.id from afterturn.jobs q
            where q.kind in ('record', 'extract') and q.finished_at is null
                and q.path >= o.path and q.path < afterturn.under_end(o.path) offset 0) t))
    order by j.id for update;

    perform afterturn.hold_pending(p_path, source_ids, named_session, outside);
    for advanced in
        select o.path from unnest(array[p_path] || outside) o(path)
        order by afterturn.scope_key(o.path)
    loop
        if advanced = p_path then
            generation := afterturn.move_erase(advanced);
        elsif keeps then
            perform afterturn.move_content(array[advanced], false);
        else
            perform afterturn.move_erase(advanced);
        end if;
    end loop;
    select count(distinct (s.path, s.record_id)) into outside_count
    from afterturn.sources_of(p_path, turn_ids, named_session) s
    where keeps and s.path = any(outside);
    if keeps and cardinality(outside) > 0 then
        perform afterturn.keep_derived(p_path, turn_ids, named_session);
        -- Current facts are kept; what the erased turns stated before is not.
        perform afterturn.forget_statements(p_id, p_path, turn_ids, outside, false);
    end if;
    if named then
        perform afterturn.forget_named(p_id, p_path, job.request, turn_ids);
    else
        perform afterturn.forget_rest(p_id, p_path);
    end if;
    if named or cardinality(alone) > 1 then
        perform afterturn.forget_derived(p_id, p_path, heard_ids, named_session, alone);
    end if;
    if named then
        perform afterturn.extract_again(p_path, heard_ids);
    end if;
    for advanced in
        select o.path from unnest(case when named then alone else alone[2:] end) o(path)
    loop
        perform afterturn.refresh_tokens(advanced);
    end loop;

    select * into job from afterturn.jobs j where j.id = p_id;
    perform afterturn.hold_erase_log(alone);
    for advanced in select unnest(alone[2:]) loop
        perform afterturn.append_erase_log(advanced, (
                select g.erase from afterturn.scope_generations g
                where g.scope_key = afterturn.scope_key(advanced)),
            p_id, job.request ->> 'requested_by', job.request ->> 'reason', job.created_at,
            afterturn.clock(), '{}', 'derived', '{}');
    end loop;
    head := afterturn.append_erase_log(p_path, generation, p_id,
        job.request ->> 'requested_by', job.request ->> 'reason', job.created_at,
        afterturn.clock(), job.counts, case when named then 'named' else 'scope' end,
        afterturn.erase_detail(p_path, job.request));
    delete from afterturn.erase_intents i where i.job_id = p_id;
    receipt := jsonb_build_object('generation', generation, 'derived_outside', outside_count,
        'log_head', encode(head, 'hex'));
    perform afterturn.end_lifecycle(p_id, 'done', receipt);
    if not named then
        update afterturn.jobs j
        set path = null, path_key = afterturn.scope_key(p_path), request = '{}'
        where j.id = p_id;
    else
        update afterturn.jobs j set request = '{}' where j.id = p_id;
    end if;
    verdict := 'done';
end $$;

-- When a scope outside stays busy: it is marked like the erased one, so that new writers stay
-- away until the final transaction has had its turn. The marks go with the job's intent.
create or replace function afterturn.forget_insist(
    p_id bigint, p_lease_token uuid, p_path text, p_lease interval) returns boolean
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    job afterturn.jobs;
begin
    if not afterturn.hold(p_id, 'forget', p_path, p_lease_token, p_lease) then
        return false;
    end if;
    select * into job from afterturn.jobs j where j.id = p_id;
    if job.request ->> 'derived' = 'erase' then
        insert into afterturn.erase_intents (path, job_id)
        select o.path, p_id from unnest(afterturn.lock_places(afterturn.outside_paths(
            p_path, afterturn.heard_turns(p_path, job.request),
            job.request -> 'named' ->> 'session'))) o(path)
        on conflict do nothing;
    end if;
    return true;
end $$;
