-- The erase log says what was erased and can only grow; schedules and retention rules.

-- '' in entries that were written before.
alter table afterturn.erase_log
    add column what text not null default ''
        check (what in ('', 'scope', 'named', 'derived', 'own')),
    add column detail jsonb not null default '{}' check (jsonb_typeof(detail) = 'object');

create function afterturn.refuse_change() returns trigger language plpgsql as $$
begin
    raise exception 'The erase log is append-only'
        using errcode = 'AT004', hint = 'Entries are neither changed nor removed.';
end $$;

create trigger erase_log_append_only
    before update or delete or truncate on afterturn.erase_log
    for each statement execute function afterturn.refuse_change();

-- Erases to come (`forget`, once) and retention rules (`expire`, again and again). Times are UTC;
-- a rule may name a civil time of day and its zone. A rule without a path is for everything. The
-- default rule follows AFTERTURN_WORKING_SECONDS.
create table afterturn.schedules (
    id bigint generated always as identity primary key,
    kind text not null check (kind in ('forget', 'expire')),
    path text collate "C",
    path_key bytea check (length(path_key) = 16),
    layer text check (layer in ('working', 'episodic', 'semantic', 'procedural', 'prospective')),
    older_seconds double precision check (older_seconds > 0),
    daily_at time,
    zone text,
    is_default boolean not null default false,
    request jsonb not null default '{}' check (jsonb_typeof(request) = 'object'),
    due_at timestamptz not null,
    created_at timestamptz not null,
    ran_at timestamptz,
    job_id bigint,
    ended_at timestamptz,
    outcome text check (outcome in ('done', 'cancelled', 'erased')),
    check ((ended_at is null) = (outcome is null)),
    check ((job_id is not null) = (outcome is not distinct from 'done')),
    check ((kind = 'expire') = (layer is not null)),
    check ((kind = 'expire') = (older_seconds is not null)),
    check ((daily_at is null) = (zone is null)),
    check (daily_at is null or kind = 'expire'),
    check (kind = 'expire' or path is not null or (outcome is not null and path_key is not null)),
    check (not is_default or (kind = 'expire' and path is null and outcome is null))
);
create index schedules_due on afterturn.schedules (kind, due_at) where outcome is null;
create index schedules_of_scope on afterturn.schedules (path) where path is not null;
create index schedules_ended on afterturn.schedules (ended_at) where outcome is not null;
create unique index schedules_default on afterturn.schedules (is_default) where is_default;

insert into afterturn.schedules (kind, layer, older_seconds, is_default, due_at, created_at)
values ('expire', 'working', 86400, true, clock_timestamp(), clock_timestamp());

-- For the rules: the rows of a layer under a path, by age where the path is the same.
create index memories_by_age on afterturn.memories (layer, path, recorded_at);
