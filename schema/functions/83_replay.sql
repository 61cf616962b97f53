-- Repeating erases in a database that was restored from a backup taken before them.

-- The scopes of which this database holds anything or knows anything, by their keys: scopes that
-- hold rows themselves, and those above. A test compares the list with the catalogue.
create or replace function afterturn.paths_of_keys(p_keys bytea[])
returns table (path text, scope_key bytea)
language sql stable as $$
    with held as (
        select m.path from afterturn.memories m
        union select m.turn_path from afterturn.memories m
        union select s.path from afterturn.memory_sources s
        union select s.turn_path from afterturn.memory_sources s
        union select f.path from afterturn.fact_statements f
        union select f.turn_path from afterturn.fact_statements f
        union select t.path from afterturn.turns t
        union select j.path from afterturn.jobs j where j.path is not null
        union select i.path from afterturn.erase_intents i
        union select s.path from afterturn.schedules s where s.path is not null
        union select u.path from afterturn.token_usage u),
    covers as (
        select distinct c.path from held h, unnest(afterturn.covering(h.path)) c(path)),
    keyed as materialized (
        select c.path, afterturn.scope_key(c.path) as scope_key from covers c)
    select k.path, k.scope_key from keyed k where k.scope_key = any(p_keys)
$$;

-- What a named erase named, as far as this database holds it.
create or replace function afterturn.named_again(p_path text, p_detail jsonb) returns jsonb
language sql stable as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'turn_ids', (
            select coalesce(jsonb_agg(n.turn_id order by n.turn_id), '[]') from (
                select t.turn_id from (
                    select w.turn_id from afterturn.turns w where w.path = p_path
                    union select m.turn_id from afterturn.memories m
                        where m.turn_path = p_path and m.turn_id is not null
                    union select s.turn_id from afterturn.memory_sources s
                        where s.turn_path = p_path) t
                where p_detail -> 'turns' ? afterturn.named_key(p_path, 'turn', t.turn_id)
                -- Of what was kept elsewhere the id is such a key.
                union select s.turn_id from afterturn.memory_sources s
                    where s.turn_path = afterturn.link(p_path, 'turn')
                        and p_detail -> 'turns' ? s.turn_id) n),
        'record_ids', (
            select coalesce(jsonb_agg(r.record_id order by r.record_id), '[]') from (
                select m.record_id from afterturn.memories m where m.path = p_path
                union select f.record_id from afterturn.fact_statements f
                    where f.path = p_path) r
            where p_detail -> 'records' ? afterturn.named_key(p_path, 'record', r.record_id)),
        'session', (
            select min(s.session) from (
                select t.session from afterturn.turns t where t.path = p_path
                union select m.session from afterturn.memories m where m.path = p_path) s
            where afterturn.named_key(p_path, 'session', s.session) = p_detail ->> 'session')))
$$;

-- For an entry that erases no rows of ours here: its scope is not held, or only its number counts.
-- The number becomes what it was made then (tokens from before are stale again), and the log says
-- so. Turns acknowledged before under a scope that was only advanced get the number, as then.
-- False: somebody holds the scope; end the transaction and try again.
create or replace function afterturn.replay_entry(
    p_path text, p_root bytea, p_scope bytea, p_generation bigint, p_what text, p_detail jsonb,
    p_requested_by text, p_reason text, p_requested_at timestamptz) returns boolean
language plpgsql as $$
declare
    number bigint;
begin
    perform afterturn.require_read_committed();
    perform afterturn.require_durable_commit();
    if p_path is not null then
        if not afterturn.try_lock_exclusive(array[p_path]) then
            return false;
        end if;
        perform from afterturn.jobs j
        where j.kind in ('record', 'extract') and j.finished_at is null
            and j.path >= p_path and j.path < afterturn.under_end(p_path)
        order by j.id for update;
    end if;
    insert into afterturn.scope_generations as g (scope_key, erase, content, removed)
    values (p_scope, p_generation, p_generation, p_generation)
    on conflict (scope_key) do update
        set erase = greatest(g.erase, excluded.erase),
            content = greatest(g.content, excluded.content),
            removed = greatest(g.removed, excluded.removed)
    returning g.erase into number;
    if p_path is not null and p_what = 'derived' then
        perform afterturn.refresh_tokens(p_path);
    end if;
    perform afterturn.append_erase_entry(p_root, p_scope, number, null, p_requested_by, p_reason,
        p_requested_at, afterturn.clock(), '{}', p_what, p_detail);
    return true;
end $$;
