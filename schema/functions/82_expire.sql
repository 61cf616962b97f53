-- Expiry: records of a layer that were recorded before a moment go; numbers of content move, those
-- of erases do not, so turns under way go on.

-- The first root at or after a path that holds something of a layer.
create or replace function afterturn.root_from(p_path text, p_layer text) returns text
language sql stable as $$
    select (afterturn.covering(l.path))[1] from (select least(
        (select m.path from afterturn.memories m
         where m.layer = p_layer and m.path >= p_path order by m.path limit 1),
        (select f.path from afterturn.fact_statements f
         where f.layer = p_layer and f.path >= p_path order by f.path limit 1)) as path) l
    where l.path is not null
$$;

-- Where something of a layer is old enough: the path itself or, without one, the roots. Roots are
-- found one after the other, by the index.
create or replace function afterturn.paths_to_expire(
    p_path text, p_layer text, p_before timestamptz) returns setof text
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    here text := p_path;
begin
    if here is null then
        here := afterturn.root_from('', p_layer);
    end if;
    while here is not null loop
        if exists (
            select from afterturn.memories m
            where m.layer = p_layer and m.path >= here and m.path < afterturn.under_end(here)
                and m.recorded_at < p_before)
            or exists (
            select from afterturn.fact_statements f
            where f.layer = p_layer and f.path >= here and f.path < afterturn.under_end(here)
                and f.recorded_at < p_before)
        then
            return next here;
        end if;
        exit when p_path is not null;
        here := afterturn.root_from(afterturn.under_end(here), p_layer);
    end loop;
end $$;

-- Adds an expire job for a rule, unless one of the same rule waits there already, or an erase of
-- the scope stands: a job behind it would keep the scope's name after it.
create or replace function afterturn.enqueue_expire(
    p_rule bigint, p_path text, p_layer text, p_before timestamptz, p_ring_after interval,
    out job_id bigint, out blocked boolean)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
    perform afterturn.require_read_committed();
    perform afterturn.lock_lane(p_path);
    -- Looked at again: an erase may have taken it all since.
    if afterturn.erasing(afterturn.covering(p_path))
        or not exists (select from afterturn.paths_to_expire(p_path, p_layer, p_before))
        or exists (
        select from afterturn.jobs j
        where j.finished_at is null and j.kind = 'expire' and j.path = p_path
            and (j.request ->> 'rule')::bigint = p_rule)
    then
        return;
    end if;
    select e.job_id, e.blocked into job_id, blocked
    from afterturn.enqueue_lifecycle('expire', p_path, jsonb_build_object(
        'rule', p_rule, 'layer', p_layer, 'before', p_before), p_ring_after) e;
end $$;

-- Deletes up to p_limit rows: pending records, then published ones, then what keyed facts said.
-- `verdict` is more, done, requeued (somebody waits for the scope: the rest is done behind them),
-- busy (the same, but put back for a moment) or lost. What is found is looked at again when it is
-- deleted: written anew meanwhile, it is young.
create or replace function afterturn.expire_chunk(
    p_id bigint, p_lease_token uuid, p_path text, p_layer text, p_before timestamptz,
    p_limit integer, p_lease interval, out verdict text, out gone integer)
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
begin
    perform afterturn.require_read_committed();
    perform afterturn.lock_shared(array[p_path]);
    if not afterturn.hold(p_id, 'expire', p_path, p_lease_token, p_lease) then
        verdict := 'lost';
        return;
    end if;
    gone := afterturn.expire_records(p_path, p_layer, p_before, p_limit, true);
    if gone is null then
        gone := afterturn.expire_records(p_path, p_layer, p_before, p_limit, false);
    end if;
    perform afterturn.count_rows(p_id, 'memories', gone);
    if gone is null then
        gone := afterturn.expire_statements(p_path, p_layer, p_before, p_limit);
        perform afterturn.count_rows(p_id, 'fact_statements', gone);
    end if;
    if gone is null then
        perform afterturn.end_lifecycle(p_id, 'done', '{}');
        verdict := 'done';
    elsif exists (select from afterturn.jobs j where j.blocked_by = p_id) then
        perform afterturn.requeue(p_id);
        verdict := coalesce(afterturn.outcome_of(p_id), 'busy');
    else
        verdict := 'more';
    end if;
end $$;

-- Null: there was nothing. Pending rows are locked in the order in which a flush locks them, published ones after the
-- content numbers of their paths.
create or replace function afterturn.expire_records(
    p_path text, p_layer text, p_before timestamptz, p_limit integer, p_pending boolean)
returns integer
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    paths text[];
    records text[];
    gone integer;
begin
    if p_pending then
        select array_agg(m.path), array_agg(m.record_id) into paths, records from (
            select w.path, w.record_id from afterturn.memories w
            where w.pending and w.layer = p_layer and w.recorded_at < p_before
                and w.path >= p_path and w.path < afterturn.under_end(p_path)
            order by w.path, w.record_id limit p_limit for update) m;
    else
        select array_agg(m.path), array_agg(m.record_id) into paths, records from (
            select w.path, w.record_id from afterturn.memories w
            where not w.pending and w.layer = p_layer and w.recorded_at < p_before
                and w.path >= p_path and w.path < afterturn.under_end(p_path)
            order by w.path limit p_limit) m;
        if paths is not null then
            perform afterturn.move_content(paths, true);
        end if;
    end if;
    if paths is null then
        return null;
    end if;
    with lost as (
        delete from afterturn.memories m using unnest(paths, records) k(path, record_id)
        where m.path = k.path and m.record_id = k.record_id and m.pending = p_pending
            and m.layer = p_layer and m.recorded_at < p_before
        returning m.path, m.record_id),
    unsourced as (
        delete from afterturn.memory_sources s using lost l
        where s.path = l.path and s.record_id = l.record_id and s.pending = p_pending)
    select count(*) into gone from lost;
    return gone;
end $$;

-- Likewise, what keyed facts said, current or superseded.
create or replace function afterturn.expire_statements(
    p_path text, p_layer text, p_before timestamptz, p_limit integer) returns integer
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    paths text[];
    records text[];
    gone integer;
begin
    select array_agg(f.path), array_agg(f.record_id) into paths, records from (
        select w.path, w.record_id from afterturn.fact_statements w
        where w.layer = p_layer and w.recorded_at < p_before
            and w.path >= p_path and w.path < afterturn.under_end(p_path)
        order by w.path limit p_limit) f;
    if paths is null then
        return null;
    end if;
    perform afterturn.move_content(paths, true);
    delete from afterturn.fact_statements f
    using (select distinct * from unnest(paths, records)) k(path, record_id)
    where f.path = k.path and f.record_id = k.record_id
        and f.layer = p_layer and f.recorded_at < p_before;
    get diagnostics gone = row_count;
    return gone;
end $$;
