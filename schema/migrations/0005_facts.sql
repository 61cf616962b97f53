-- Facts with a key and their history; tokens used per root.

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
alter table afterturn.fact_statements alter column text set statistics 0,
    alter column origin set statistics 0, alter column metadata set statistics 0;

create table afterturn.token_usage (
    path text collate "C" primary key,
    calls bigint not null default 0 check (calls >= 0),
    prompt_tokens bigint not null default 0 check (prompt_tokens >= 0),
    completion_tokens bigint not null default 0 check (completion_tokens >= 0)
);

create index memories_same_text on afterturn.memories (path, md5(text)) where origin <> 'turn';
