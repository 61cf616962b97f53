-- Direct writes, and the checks that adopters fence their own tables with.

-- Judges a write to a path, under locks the transaction already holds: `accounted` is the vector
-- of erase numbers the writer vouches for (null: none). Raises; returns when the write may go on.
create or replace function afterturn.require_accounted(
    p_path text, p_accounted bigint[], p_admitted boolean) returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    covers text[] := afterturn.covering(p_path);
    standing bigint[];
begin
    perform afterturn.require_read_committed();
    if afterturn.erasing(covers) then
        raise exception 'An erase that covers this scope has not completed'
            using errcode = 'AT001', hint = 'Try again when it is done.';
    end if;
    standing := afterturn.token_of(covers);
    if exists (
        select from unnest(standing) with ordinality s(number, at)
        where s.number > 0 and s.number is distinct from coalesce(p_accounted[s.at], 0))
    then
        if p_admitted then
            raise exception 'The turn began before an erase that covers its scope'
                using errcode = 'AT002', hint = 'Begin a new turn.';
        end if;
        raise exception 'The scope was erased before and the write vouches for no erase'
            using errcode = 'AT003', hint = 'Capture a token first and pass it on.';
    end if;
end $$;

-- The token is still exact, no number more and none less.
create or replace function afterturn.require_exact(p_path text, p_token bigint[]) returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    covers text[] := afterturn.covering(p_path);
begin
    perform afterturn.require_read_committed();
    if afterturn.erasing(covers) then
        raise exception 'An erase that covers this scope has not completed'
            using errcode = 'AT001', hint = 'Try again when it is done.';
    end if;
    if afterturn.token_of(covers) is distinct from p_token then
        raise exception 'The turn began before an erase that covers its scope'
            using errcode = 'AT002', hint = 'Begin a new turn.';
    end if;
end $$;

-- Records with a source that an erase took: no such turn is there, and its scope has had an erase
-- that the writer vouches for nothing about. (Where the numbers above are vouched for, a turn that is
-- not there is one that has not been finished.) Asked under the sources' locks.
create or replace function afterturn.with_erased_sources(p_path text, p_records jsonb)
returns setof text
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
begin
    return query
    with named as materialized (
        select r ->> 'record_id' as record_id, k ->> 'turn_path' as path, k ->> 'turn_id' as turn_id
        from jsonb_array_elements(p_records) r, jsonb_array_elements(r -> 'sources') k),
    unvouched as materialized (
        select p.path from (select distinct n.path from named n) p
        where exists (
            select from unnest(afterturn.covering(p.path)) c(path)
            join afterturn.scope_generations g on g.scope_key = afterturn.scope_key(c.path)
            where g.erase > 0 and not c.path = any(afterturn.covering(p_path))))
    select distinct n.record_id from named n join unvouched u on u.path = n.path
    where not exists (select from afterturn.turns t
        where t.path = n.path and t.turn_id = n.turn_id);
end $$;

-- Keeps records as pending. The same id in the same scope replaces: `updated`. One that names a
-- source which an erase took is `erased`: nothing of it is kept, or the turn's name would be back.
create or replace function afterturn.write_records(
    p_path text, p_token bigint[], p_records jsonb)
returns table (record_id text, status text)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    at timestamptz := afterturn.clock();
    source_paths text[] := array(
        select distinct k ->> 'turn_path' from jsonb_array_elements(p_records) r,
            jsonb_array_elements(r -> 'sources') k);
    erased text[] := '{}';
begin
    perform afterturn.require_read_committed();
    perform afterturn.require_durable_commit();
    if afterturn.erasing(afterturn.covering(p_path)) then
        raise exception 'An erase that covers this scope has not completed'
            using errcode = 'AT001', hint = 'Try again when it is done.';
    end if;
    if cardinality(source_paths) > 100 then
        raise exception 'The records of one write name sources in more than 100 scopes'
            using errcode = 'AT004', hint = 'Write them in several requests.';
    end if;
    -- An erase of a source's scope must find what was learned from it, or it is found standing here.
    perform afterturn.lock_shared(array[p_path] || source_paths);
    if exists (select from unnest(source_paths) s(path)
            where afterturn.erasing(afterturn.covering(s.path))) then
        raise exception 'An erase that covers a source of the records has not completed'
            using errcode = 'AT001', hint = 'Try again when it is done.';
    end if;
    if p_token is null then
        perform afterturn.require_accounted(p_path, null, false);
    else
        perform afterturn.require_exact(p_path, p_token);
    end if;
    if cardinality(source_paths) > 0 then
        erased := array(select afterturn.with_erased_sources(p_path, p_records));
        return query select e.id, 'erased' from unnest(erased) e(id);
    end if;
    return query
    with given as materialized (
        select r, afterturn.draw_number() as revision
        from jsonb_array_elements(p_records) r
        where not r ->> 'record_id' = any(erased)
        order by (r ->> 'record_id') collate "C"),  -- as they are locked by others
    known as materialized (
        select distinct m.record_id from afterturn.memories m join given g
            on m.path = p_path and m.record_id = g.r ->> 'record_id'),
    written as (
        insert into afterturn.memories as m (path, record_id, pending, turn_path, turn_id, session,
            layer, origin, text, metadata, importance, occurred_at, recorded_at, content, revision)
        select p_path, g.r ->> 'record_id', true, p_path, null, g.r ->> 'session',
            g.r ->> 'layer', g.r ->> 'origin', g.r ->> 'text', g.r -> 'metadata',
            (g.r ->> 'importance')::double precision, (g.r ->> 'occurred_at')::timestamptz, at, 0,
            g.revision
        from given g
        on conflict (path, record_id, pending) do update set
            session = excluded.session, layer = excluded.layer, origin = excluded.origin,
            text = excluded.text, metadata = excluded.metadata,
            importance = excluded.importance, occurred_at = excluded.occurred_at,
            recorded_at = excluded.recorded_at, revision = excluded.revision
        returning m.record_id),
    unsourced as (
        delete from afterturn.memory_sources s using given g
        where s.path = p_path and s.record_id = g.r ->> 'record_id' and s.pending
            and not exists (select from jsonb_array_elements(g.r -> 'sources') k
                where k ->> 'turn_path' = s.turn_path and k ->> 'turn_id' = s.turn_id)),
    sourced as (
        insert into afterturn.memory_sources (path, record_id, pending, turn_path, turn_id)
        select distinct p_path, g.r ->> 'record_id', true, k ->> 'turn_path', k ->> 'turn_id'
        from given g, jsonb_array_elements(g.r -> 'sources') k
        on conflict do nothing)
    select w.record_id,
        case when exists (select from known k where k.record_id = w.record_id)
            then 'updated' else 'pending' end
    from written w;
end $$;

-- [[turn id, turn path], …] of the turns that a record was learned from, but for erased ones.
create or replace function afterturn.record_sources(
    p_path text, p_record_id text, p_pending boolean) returns jsonb
language plpgsql stable as $$
begin
    return (
        select coalesce(jsonb_agg(jsonb_build_array(s.turn_id, s.turn_path) order by s.turn_id),
            '[]')
        from afterturn.memory_sources s
        where s.path = p_path and s.record_id = p_record_id and s.pending = p_pending
            and s.turn_path >= 'v');
end $$;
