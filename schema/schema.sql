-- What a new database gets: the tables that all migrations together give, in one place to read.
-- `afterturn migrate` runs the migrations and then the functions of schema/functions; this file is
-- not executed by it. A test proves that both ways lead to the same catalogue.
--
-- Paths carry a trailing slash and collation C here ('v1/acme/alice/'), so
-- "covers" is a prefix, "everything under" is one index range, and chat-4 never matches chat-42.
-- Rows that are never deleted (scope_generations, erase_log) hold a keyed hash instead of a path.

create schema if not exists afterturn;

create table afterturn.migrations (
    version integer primary key,
    name text not null,
    applied_at timestamptz not null
);

-- One row: what makes this database this installation.
create table afterturn.installation (
    singleton boolean primary key default true check (singleton),
    hash_key bytea not null check (length(hash_key) = 32),
    functions_digest text,
    embedder_model text,
    embedder_dim integer check (embedder_dim > 0),
    check ((embedder_model is null) = (embedder_dim is null))
);

-- `erase` moves when a forget completes, `content` when anything a reader sees changes, `removed`
-- is the content number at which rows last went away. Numbers only grow and never repeat.
create table afterturn.scope_generations (
    scope_key bytea primary key check (length(scope_key) = 16),
    erase bigint not null default 0 check (erase >= 0),
    content bigint not null default 0 check (content >= 0),
    removed bigint not null default 0 check (removed >= 0 and removed <= content)
);

-- The standing mark of an erase that was requested and has not completed.
create table afterturn.erase_intents (
    path text collate "C" not null,
    job_id bigint not null,
    primary key (path, job_id)
);
create index erase_intents_job on afterturn.erase_intents (job_id);

-- A finished turn: its text with its token from the moment it is staged, its transcript row once
-- it is recorded, and the proof that the turn is known, until its scope is erased.
-- Its rules are asked by `afterturn.turn_faults`, not checked at each write: checks were costly.
create table afterturn.turns (
    path text collate "C" not null,
    turn_id text collate "C" not null,
    session text collate "C",
    query text,
    answer text,
    names text[],
    metadata jsonb not null,
    happened_at timestamptz not null,
    occurred_at timestamptz,
    staged_at timestamptz not null,
    token bigint[] not null,
    recorded integer,
    recorded_at timestamptz,
    extracted integer,
    extracted_at timestamptz,
    outcome text not null default 'waiting',
    reason text not null default '',
    primary key (path, turn_id)
);
create index turns_in_order on afterturn.turns (path, happened_at, turn_id);

-- `pending` rows wait for a flush; readers see the others. The row that a flush replaces stands
-- beside its successor until then.
create table afterturn.memories (
    path text collate "C" not null,
    record_id text collate "C" not null,
    pending boolean not null,
    turn_path text collate "C" not null,
    turn_id text collate "C",
    session text collate "C",
    layer text not null
        check (layer in ('working', 'episodic', 'semantic', 'procedural', 'prospective')),
    origin text not null,
    text text not null,
    metadata jsonb not null check (jsonb_typeof(metadata) = 'object'),
    importance double precision not null check (importance between 0 and 1),
    occurred_at timestamptz,
    recorded_at timestamptz not null,
    content bigint not null check (content >= 0),
    revision bigint not null,
    embedding bytea,
    primary key (path, record_id, pending),
    check (not pending or embedding is null)
);
create index memories_changed on afterturn.memories (path, content) where not pending;
create index memories_unpublished on afterturn.memories (path, record_id) where pending;
create index memories_of_turn on afterturn.memories (turn_path, turn_id);
-- For the rules: the rows of a layer under a path, by age where the path is the same.
create index memories_by_age on afterturn.memories (layer, path, recorded_at);
create index memories_unembedded on afterturn.memories (path)
    where embedding is null and not pending;
create index memories_same_text on afterturn.memories (path, md5(text)) where origin <> 'turn';

-- The turns that a record was learned from.
create table afterturn.memory_sources (
    path text collate "C" not null,
    record_id text collate "C" not null,
    pending boolean not null,
    turn_path text collate "C" not null,
    turn_id text collate "C" not null,
    primary key (path, record_id, pending, turn_path, turn_id)
);
create index memory_sources_of_turn on afterturn.memory_sources (turn_path, turn_id);

-- What turns have stated of one thing, a fact's key (subject and attribute), for which the record id
-- stands. The latest statement is the current fact and stands in `memories`; those before a
-- different one are `superseded`, its history. The mark stays when the later one is erased.
create table afterturn.fact_statements (
    path text collate "C" not null,
    record_id text collate "C" not null,
    turn_path text collate "C" not null,
    turn_id text collate "C" not null,
    said_at timestamptz not null,
    staged_at timestamptz not null,
    superseded boolean not null default false,
    digest bytea not null check (length(digest) = 16),
    layer text not null
        check (layer in ('working', 'episodic', 'semantic', 'procedural', 'prospective')),
    origin text not null,
    text text not null,
    metadata jsonb not null check (jsonb_typeof(metadata) = 'object'),
    importance double precision not null check (importance between 0 and 1),
    recorded_at timestamptz not null,
    primary key (path, record_id, turn_path, turn_id)
);
create index fact_statements_of_turn on afterturn.fact_statements (turn_path, turn_id);
create index fact_statements_by_age on afterturn.fact_statements (layer, path, recorded_at);

-- Calls of the extraction model and their tokens, by root path; the empty path stands for roots
-- that were erased.
create table afterturn.token_usage (
    path text collate "C" primary key,
    calls bigint not null default 0 check (calls >= 0),
    prompt_tokens bigint not null default 0 check (prompt_tokens >= 0),
    completion_tokens bigint not null default 0 check (completion_tokens >= 0)
);

-- The ledger. `ready_at` is when a job may be claimed: while a lease is held, when it expires.
-- `ring_at` is when the sweep looks at it next. A blocked job waits for `blocked_by` to end.
-- What became of a turn stands on the turn: its jobs' rows go when they are done, dead ones stay.
-- Its rules are asked by `afterturn.ledger_faults`, not checked at each write: checks were costly.
create table afterturn.jobs (
    id bigint generated always as identity primary key,
    kind text not null,
    path text collate "C",
    path_key bytea,
    turn_id text collate "C",
    attempts integer not null default 0,
    lease_token uuid,
    ready_at timestamptz not null,
    ring_at timestamptz not null,
    blocked_by bigint,
    releasing boolean not null default false,
    request jsonb not null default '{}',
    counts jsonb not null default '{}',
    receipt jsonb not null default '{}',
    created_at timestamptz not null,
    finished_at timestamptz,
    outcome text,
    reason text not null default ''
);
create index jobs_of_turns on afterturn.jobs (path, id)
    where kind in ('record', 'extract', 'embed');
create unique index jobs_waiting_embed on afterturn.jobs (path)
    where kind = 'embed' and finished_at is null and lease_token is null;
create index jobs_waiting on afterturn.jobs (kind, ready_at)
    where finished_at is null and blocked_by is null and lease_token is null;
create index jobs_swept on afterturn.jobs (ring_at)
    where blocked_by is null and (finished_at is null or releasing);
create index jobs_open_lifecycle on afterturn.jobs (path, id)
    where finished_at is null and kind in ('flush', 'forget', 'expire');
create index jobs_ended_lifecycle on afterturn.jobs (path)
    where finished_at is not null and kind in ('flush', 'forget', 'expire');
create index jobs_blocked on afterturn.jobs (blocked_by) where blocked_by is not null;
create index jobs_ended on afterturn.jobs (outcome, finished_at)
    where finished_at is not null and not releasing;

-- Append-only, chained per root segment. `what` is '' in entries that were written before it was
-- known; `detail` holds what a restored database needs to repeat the erase, as keyed hashes.
create table afterturn.erase_log (
    id bigint generated always as identity primary key,
    root_key bytea not null check (length(root_key) = 16),
    scope_key bytea not null check (length(scope_key) = 16),
    generation bigint not null,
    job_id bigint,
    requested_by text not null,
    reason text not null,
    requested_at timestamptz not null,
    completed_at timestamptz not null,
    counts jsonb not null,
    previous_hash bytea not null check (length(previous_hash) = 32),
    hash bytea not null unique check (length(hash) = 32),
    what text not null default '' check (what in ('', 'scope', 'named', 'derived', 'own')),
    detail jsonb not null default '{}' check (jsonb_typeof(detail) = 'object')
);
create index erase_log_of_root on afterturn.erase_log (root_key, id);
create index erase_log_of_scope on afterturn.erase_log (scope_key, id);

create table afterturn.erase_log_heads (
    root_key bytea primary key check (length(root_key) = 16),
    hash bytea not null check (length(hash) = 32)
);

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

-- Probes: `afterturn doctor` sends one through each queue, and the worker that takes it answers here.
-- `worker_at` is what the worker's own clock said then.
create table afterturn.probes (
    id uuid primary key,
    asked_at timestamptz not null,
    answered_at timestamptz,
    worker_at timestamptz,
    check ((answered_at is null) = (worker_at is null))
);

-- The planner's statistics would keep samples of what was erased: text, names of scopes, ids, vectors.
alter table afterturn.turns alter column path set statistics 0,
    alter column turn_id set statistics 0, alter column session set statistics 0,
    alter column query set statistics 0, alter column answer set statistics 0,
    alter column names set statistics 0, alter column metadata set statistics 0,
    alter column reason set statistics 0;
alter table afterturn.memories alter column path set statistics 0,
    alter column record_id set statistics 0, alter column turn_path set statistics 0,
    alter column turn_id set statistics 0, alter column session set statistics 0,
    alter column origin set statistics 0, alter column text set statistics 0,
    alter column metadata set statistics 0, alter column embedding set statistics 0;
alter index afterturn.memories_same_text alter column 2 set statistics 0;
alter table afterturn.memory_sources alter column path set statistics 0,
    alter column record_id set statistics 0, alter column turn_path set statistics 0,
    alter column turn_id set statistics 0;
alter table afterturn.fact_statements alter column path set statistics 0,
    alter column record_id set statistics 0, alter column turn_path set statistics 0,
    alter column turn_id set statistics 0, alter column digest set statistics 0,
    alter column origin set statistics 0, alter column text set statistics 0,
    alter column metadata set statistics 0;
alter table afterturn.token_usage alter column path set statistics 0;
alter table afterturn.jobs alter column path set statistics 0,
    alter column turn_id set statistics 0, alter column request set statistics 0,
    alter column reason set statistics 0;
alter table afterturn.schedules alter column path set statistics 0,
    alter column request set statistics 0;
alter table afterturn.erase_intents alter column path set statistics 0;
