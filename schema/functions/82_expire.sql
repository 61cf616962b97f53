-- Expiry: records of a layer that were recorded before a moment go; numbers of content move, those
-- of erases do not, so turns under way go on.

-- Where something of a layer is old enough: the path itself or, without one, the roots. Roots are
-- found one after the other, by the index.
create or replace function afterturn.paths_to_expire(
    p_path text, p_layer text, p_before timestamptz) returns setof text
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    here text := p_path;
begin
    if here is null then
        select (afterturn.covering(m.path))[1] into here
        from afterturn.memories m where m.layer = p_layer order by m.path limit 1;
    end if;
    while here is not null loop
        if exists (
            select from afterturn.memories m
            where m.layer = p_layer and m.path >= here and m.path < afterturn.under_end(here)
                and m.recorded_at < p_before)
        then
            return next here;
        end if;
        exit when p_path is not null;
        select (afterturn.covering(m.path))[1] into here
        from afterturn.memories m
        where m.layer = p_layer and m.path >= afterturn.under_end(here)
        order by m.path limit 1;
        exit when not found;
    end loop;
end $$;

-- Adds an expire job for a rule, unless one of the same rule waits there already.
create or replace function afterturn.enqueue_expire(
    p_rule bigint, p_path text, p_layer text, p_before timestamptz, p_ring_after interval,
    out job_id bigint, out blocked boolean)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
    perform afterturn.require_read_committed();
    perform afterturn.lock_lane(p_path);
    if exists (
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

-- Deletes up to p_limit records, pending ones first. `verdict` is more, done, requeued (somebody
-- waits for the scope: the rest is done behind them) or lost.
create or replace function afterturn.expire_chunk(
    p_id bigint, p_lease_token uuid, p_path text, p_layer text, p_before timestamptz,
    p_limit integer, p_lease interval, p_after_path text,
    out verdict text, out gone integer, out last_path text)
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    paths text[];
    records text[];
    deleted integer;
begin
    gone := 0;
    perform afterturn.require_read_committed();
    perform afterturn.lock_shared(array[p_path]);
    if not afterturn.hold(p_id, 'expire', p_path, p_lease_token, p_lease) then
        verdict := 'lost';
        return;
    end if;
    for stage in 1..2 loop
        if stage = 1 then
            select coalesce(array_agg(m.path), '{}'), coalesce(array_agg(m.record_id), '{}')
            into paths, records from (
                select w.path, w.record_id from afterturn.memories w
                where w.layer = p_layer and w.pending and w.recorded_at < p_before
                    and w.path >= greatest(p_path, p_after_path)
                    and w.path < afterturn.under_end(p_path)
                order by w.path, w.record_id limit p_limit for update) m;
        else
            select coalesce(array_agg(m.path), '{}'), coalesce(array_agg(m.record_id), '{}'),
                max(m.path)
            into paths, records, last_path from (
                select w.path, w.record_id from afterturn.memories w
                where w.layer = p_layer and not w.pending and w.recorded_at < p_before
                    and w.path >= greatest(p_path, p_after_path)
                    and w.path < afterturn.under_end(p_path)
                order by w.path limit p_limit) m;
            perform afterturn.move_content(paths, true);
        end if;
        with lost as (
            -- Looked at again: what was written anew meanwhile is young.
            delete from afterturn.memories m using unnest(paths, records) k(path, record_id)
            where m.path = k.path and m.record_id = k.record_id and m.pending = (stage = 1)
                and m.layer = p_layer and m.recorded_at < p_before
            returning m.path, m.record_id, m.pending),
        unsourced as (
            delete from afterturn.memory_sources s using lost l
            where s.path = l.path and s.record_id = l.record_id and s.pending = l.pending)
        select count(*) into deleted from lost;
        gone := gone + deleted;
        if cardinality(records) >= p_limit then
            verdict := 'more';
            exit;
        end if;
    end loop;
    perform afterturn.count_rows(p_id, 'memories', gone);
    if verdict is null then
        perform afterturn.end_lifecycle(p_id, 'done', '{}');
        verdict := 'done';
    elsif exists (select from afterturn.jobs j where j.blocked_by = p_id) then
        perform afterturn.requeue(p_id);
        verdict := 'requeued';
    end if;
end $$;
