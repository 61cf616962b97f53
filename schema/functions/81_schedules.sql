-- Erases to come, and retention rules. A schedule is a row; the sweep turns what is due into jobs,
-- in the transaction that marks the schedule, so that any number of sweeps make one job of it.
--
-- A schedule's row is locked after lane locks and after the rows of jobs and memories; whoever
-- holds one locks at most the erase log's head after it.

-- The next time a rule is looked at: by its zone's clock once a day (a time that a day skips comes
-- after the gap, one that it repeats comes once), else often enough for its age, hourly at most.
create or replace function afterturn.next_run(
    p_after timestamptz, p_older_seconds double precision, p_daily_at time, p_zone text)
returns timestamptz
language sql stable as $$
    select case when p_daily_at is null
        then p_after + make_interval(secs => least(3600, greatest(1, p_older_seconds / 24)))
        else (
            select min(c.civil) from (
                select ((p_after at time zone p_zone)::date + n + p_daily_at) at time zone p_zone
                from generate_series(-1, 2) n) c(civil)
            where c.civil > p_after) end
$$;

create or replace function afterturn.require_zone(p_zone text) returns void
language plpgsql as $$
begin
    if not exists (select from pg_timezone_names z where z.name = p_zone) then
        raise exception 'There is no such time zone'
            using errcode = 'AT004', hint = 'Name it as Europe/Berlin or UTC.';
    end if;
end $$;

-- A moment by the clock of a zone, as PostgreSQL knows it.
create or replace function afterturn.civil_time(p_civil timestamp, p_zone text)
returns timestamptz
language plpgsql as $$
begin
    perform afterturn.require_zone(p_zone);
    if p_civil not between '0002-01-01' and '9999-12-30' then
        raise exception 'The time is outside the years 2 to 9999' using errcode = 'AT004';
    end if;
    return p_civil at time zone p_zone;
end $$;

-- An erase ends the schedules of its scope, those that came while it ran among them.
create or replace function afterturn.require_no_erase(p_path text) returns void
language plpgsql as $$
begin
    if afterturn.erasing(afterturn.covering(p_path)) then
        raise exception 'An erase that covers this scope has not completed'
            using errcode = 'AT001', hint = 'Try again when it is done.';
    end if;
end $$;

create or replace function afterturn.schedule_forget(
    p_path text, p_due_at timestamptz, p_request jsonb) returns afterturn.schedules
language plpgsql as $$
declare
    made afterturn.schedules;
begin
    perform afterturn.require_durable_commit();
    perform afterturn.lock_shared(array[p_path]);
    perform afterturn.require_no_erase(p_path);
    if p_due_at <= afterturn.clock() then
        raise exception 'A schedule cannot be in the past'
            using errcode = 'AT004', hint = '`afterturn forget` erases at once.';
    end if;
    insert into afterturn.schedules (kind, path, request, due_at, created_at)
    values ('forget', p_path, p_request, p_due_at, afterturn.clock()) returning * into made;
    return made;
end $$;

create or replace function afterturn.add_rule(
    p_path text, p_layer text, p_older_seconds double precision, p_daily_at time, p_zone text)
returns afterturn.schedules
language plpgsql as $$
declare
    at timestamptz := afterturn.clock();
    made afterturn.schedules;
begin
    perform afterturn.require_durable_commit();
    if p_path is not null then
        perform afterturn.lock_shared(array[p_path]);
        perform afterturn.require_no_erase(p_path);
    end if;
    if p_zone is not null then
        perform afterturn.require_zone(p_zone);
    end if;
    insert into afterturn.schedules (kind, path, layer, older_seconds, daily_at, zone, due_at,
        created_at)
    values ('expire', p_path, p_layer, p_older_seconds, p_daily_at, p_zone,
        case when p_daily_at is null then at
            else afterturn.next_run(at, p_older_seconds, p_daily_at, p_zone) end, at)
    returning * into made;
    return made;
end $$;

-- Null: there is no such schedule. One that has ended, or is the default rule, is given back as
-- it is.
create or replace function afterturn.cancel_schedule(p_id bigint) returns afterturn.schedules
language plpgsql as $$
declare
    found_schedule afterturn.schedules;
begin
    perform afterturn.require_durable_commit();
    update afterturn.schedules s set outcome = 'cancelled', ended_at = afterturn.clock()
    where s.id = p_id and s.outcome is null and not s.is_default;
    select * into found_schedule from afterturn.schedules s where s.id = p_id;
    return found_schedule;
end $$;

-- The default rule follows the setting.
create or replace function afterturn.settle_default_rule(p_older_seconds double precision)
returns void
language sql as $$
    update afterturn.schedules s
    set older_seconds = p_older_seconds, due_at = afterturn.clock()
    where s.is_default and s.older_seconds <> p_older_seconds
$$;

-- What an idle sweep asks.
create or replace function afterturn.schedule_is_due() returns boolean
language sql stable as $$
    select exists (select from afterturn.schedules s
        where s.outcome is null and s.kind in ('forget', 'expire')
            and s.due_at <= afterturn.clock())
$$;

-- Turns one due erase into its job, in one transaction with the mark on its row. Null: none is
-- due, or somebody else was quicker. One a transaction: enqueuing takes lane locks, which come last.
-- The row is locked after the job is enqueued: whoever ends schedules with a scope holds job rows.
create or replace function afterturn.run_due_erase(
    p_ring_after interval, out job_id bigint, out blocked boolean)
language plpgsql as $$
#variable_conflict use_column
declare
    due afterturn.schedules;
begin
    perform afterturn.require_read_committed();
    select * into due from afterturn.schedules s
    where s.outcome is null and s.kind = 'forget' and s.due_at <= afterturn.clock()
    order by s.due_at limit 1;
    if not found then
        return;
    end if;
    begin
        select e.job_id, e.blocked into job_id, blocked
        from afterturn.enqueue_lifecycle('forget', due.path, due.request, p_ring_after) e;
        update afterturn.schedules s
        set outcome = 'done', ended_at = afterturn.clock(), ran_at = afterturn.clock(),
            job_id = run_due_erase.job_id
        where s.id = due.id and s.outcome is null;
        if not found then
            raise exception 'taken' using errcode = 'AT000';
        end if;
    exception when sqlstate 'AT000' then
        job_id := null;
    end;
end $$;

-- Takes one due rule for p_hold: others pass it over meanwhile, and come back to it if we die.
create or replace function afterturn.claim_due_rule(
    p_hold interval, out id bigint, out path text, out layer text, out before timestamptz)
language sql as $$
    update afterturn.schedules s set due_at = afterturn.clock() + p_hold
    where s.id = (
        select d.id from afterturn.schedules d
        where d.outcome is null and d.kind = 'expire' and d.due_at <= afterturn.clock()
        order by d.due_at limit 1 for update skip locked)
    returning s.id, s.path, s.layer,
        afterturn.clock() - make_interval(secs => s.older_seconds)
$$;

create or replace function afterturn.rule_ran(p_id bigint) returns void
language sql as $$
    update afterturn.schedules s
    set ran_at = afterturn.clock(), due_at = afterturn.next_run(
        afterturn.clock(), s.older_seconds, s.daily_at, s.zone)
    where s.id = p_id and s.outcome is null
$$;

-- Schedules at and under an erased scope end with it and keep no readable path.
create or replace function afterturn.forget_schedules(p_path text) returns bigint
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    ended bigint;
begin
    with gone as (
        select s.id, s.outcome from afterturn.schedules s
        where s.path >= p_path and s.path < afterturn.under_end(p_path)
        order by s.id for update),
    blanked as (
        update afterturn.schedules s
        set path = null, path_key = afterturn.scope_key(s.path), request = '{}',
            outcome = coalesce(s.outcome, 'erased'),
            ended_at = coalesce(s.ended_at, afterturn.clock())
        where s.id = any(array(select g.id from gone g)))
    select count(*) filter (where g.outcome is null) into ended from gone g;
    return ended;
end $$;

-- Schedules that ended long ago.
create or replace function afterturn.prune_schedules(p_older interval, p_limit integer)
returns integer
language plpgsql as $$
declare
    gone integer;
begin
    delete from afterturn.schedules s where s.id = any(array(
        select q.id from afterturn.schedules q
        where q.outcome is not null and q.ended_at < afterturn.clock() - p_older
        limit p_limit for update skip locked));
    get diagnostics gone = row_count;
    return gone;
end $$;
