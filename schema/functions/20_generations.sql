-- Tokens, intents, and the numbers that move.

create or replace function afterturn.erasing(covering text[]) returns boolean
language plpgsql stable parallel safe as $$
begin
    return exists (select from afterturn.erase_intents i where i.path = any(covering));
end $$;

-- The erase numbers of the covering paths, root first, 0 where nothing was ever erased.
create or replace function afterturn.token_of(covering text[]) returns bigint[]
language plpgsql stable parallel safe as $$
declare
    own_key bytea;
    covers text;
    number bigint;
    token bigint[] := '{}';
begin
    select i.hash_key into own_key from afterturn.installation i;
    -- One look a path: as a join it took half as long again (function scan, sort).
    foreach covers in array covering loop
        select g.erase into number from afterturn.scope_generations g
        where g.scope_key = afterturn.keyed(own_key, covers);
        token := token || coalesce(number, 0);
    end loop;
    return token;
end $$;

-- What a turn takes with it when it begins; null while an erase stands. One snapshot.
create or replace function afterturn.capture(path text) returns bigint[]
language plpgsql stable parallel safe set plan_cache_mode = force_generic_plan as $$
declare
    covers text[] := afterturn.covering(path);
begin
    return case when not afterturn.erasing(covers) then afterturn.token_of(covers) end;
end $$;

-- Everything a reader has to know before it may serve what it holds. One snapshot.
create or replace function afterturn.read_state(
    path text, out erasing boolean, out erase bigint[], out content bigint[], out removed bigint[])
language plpgsql stable parallel safe set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    covers text[] := afterturn.covering(read_state.path);
begin
    select exists (select from afterturn.erase_intents e where e.path = any(covers)),
        array_agg(coalesce(g.erase, 0) order by c.at),
        array_agg(coalesce(g.content, 0) order by c.at),
        array_agg(coalesce(g.removed, 0) order by c.at)
    into erasing, erase, content, removed
    from afterturn.installation i
    cross join unnest(covers) with ordinality c(path, at)
    left join lateral (
        select s.erase, s.content, s.removed from afterturn.scope_generations s
        where s.scope_key = afterturn.keyed(i.hash_key, c.path)) g on true;
end $$;

-- Moves the content numbers of the paths, ascending by key, and returns the new ones.
create or replace function afterturn.move_content(paths text[], removing boolean)
returns table (path text, content bigint)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
    return query
    with touched as materialized (
        select distinct p.path, afterturn.scope_key(p.path) as key from unnest(paths) p(path)),
    moved as (
        insert into afterturn.scope_generations as g (scope_key, content, removed)
        select n.key, n.number, case when removing then n.number else 0 end
        from (select t.key, afterturn.draw_number() as number from touched t order by t.key) n
        on conflict (scope_key) do update
            set content = afterturn.following(g.content, excluded.content),
                removed = case when removing
                    then afterturn.following(g.content, excluded.content) else g.removed end
        returning g.scope_key, g.content)
    select t.path, m.content from touched t join moved m on m.scope_key = t.key;
end $$;

-- Moves the erase number (and with it content) of a scope whose EXCLUSIVE lock is held.
create or replace function afterturn.move_erase(path text) returns bigint
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    moved bigint;
begin
    insert into afterturn.scope_generations as g (scope_key, erase, content, removed)
    select afterturn.scope_key(path), n.number, n.number, n.number
    from (select afterturn.draw_number() as number) n
    on conflict (scope_key) do update
        set erase = afterturn.following(g.erase, excluded.erase),
            content = afterturn.following(g.content, excluded.content),
            removed = afterturn.following(g.content, excluded.content)
    returning erase into moved;
    return moved;
end $$;
