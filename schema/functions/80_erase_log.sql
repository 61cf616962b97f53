-- The erase log: one chain of hashes per root segment. What may change is appended only.

-- Each field is hashed by itself, so that no shift of text between fields keeps the sum. Entries
-- that were written before `what` was known ('') have the sum they were given then.
create or replace function afterturn.erase_log_hash(
    previous bytea, root bytea, own bytea, generation bigint, job_id bigint, requested_by text,
    reason text, requested_at timestamptz, completed_at timestamptz, counts jsonb, what text,
    detail jsonb) returns bytea
language sql immutable parallel safe as $$
    select sha256(previous || sha256(root) || sha256(own)
        || sha256(convert_to(generation::text, 'UTF8'))
        || sha256(convert_to(coalesce(job_id::text, ''), 'UTF8'))
        || sha256(convert_to(requested_by, 'UTF8'))
        || sha256(convert_to(reason, 'UTF8'))
        || sha256(convert_to((extract(epoch from requested_at) * 1000000)::bigint::text, 'UTF8'))
        || sha256(convert_to((extract(epoch from completed_at) * 1000000)::bigint::text, 'UTF8'))
        || sha256(convert_to(counts::text, 'UTF8'))
        || case when what = '' then ''::bytea else sha256(convert_to(what, 'UTF8'))
            || sha256(convert_to(detail::text, 'UTF8')) end)
$$;

-- Appends an entry, chained to the last one of the same root, and returns its hash.
create or replace function afterturn.append_erase_entry(
    root bytea, own bytea, generation bigint, job_id bigint, requested_by text, reason text,
    requested_at timestamptz, completed_at timestamptz, counts jsonb, what text, detail jsonb)
returns bytea
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    head bytea;
    entry bytea;
begin
    insert into afterturn.erase_log_heads values (root, sha256(root)) on conflict do nothing;
    select h.hash into head from afterturn.erase_log_heads h where h.root_key = root for update;
    entry := afterturn.erase_log_hash(head, root, own, generation, job_id, requested_by, reason,
        requested_at, completed_at, counts, what, detail);
    insert into afterturn.erase_log (root_key, scope_key, generation, job_id, requested_by, reason,
        requested_at, completed_at, counts, previous_hash, hash, what, detail)
    values (root, own, generation, job_id, requested_by, reason,
        requested_at, completed_at, counts, head, entry, what, detail);
    update afterturn.erase_log_heads h set hash = entry where h.root_key = root;
    return entry;
end $$;

-- Holds the chains of all these paths, in one order, for whoever appends to several.
create or replace function afterturn.hold_erase_log(p_paths text[]) returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    roots bytea[] := array(
        select distinct afterturn.scope_key((afterturn.covering(p.path))[1])
        from unnest(p_paths) p(path) order by 1);
begin
    insert into afterturn.erase_log_heads select r, sha256(r) from unnest(roots) r
    on conflict do nothing;
    perform from afterturn.erase_log_heads h where h.root_key = any(roots)
    order by h.root_key for update;
end $$;

-- Appends an entry for a path. `what`: scope (all under it), named (turns, records, a session at it),
-- derived (what was learned there from turns erased elsewhere), own (an adopter's own erase).
create or replace function afterturn.append_erase_log(
    path text, generation bigint, job_id bigint, requested_by text, reason text,
    requested_at timestamptz, completed_at timestamptz, counts jsonb, what text default 'own',
    detail jsonb default '{}') returns bytea
language sql as $$
    select afterturn.append_erase_entry(afterturn.scope_key((afterturn.covering(path))[1]),
        afterturn.scope_key(path), generation, job_id, requested_by, reason, requested_at,
        completed_at, counts, what, detail)
$$;

-- What an entry says beyond its scope, so that a restored database can be brought after it: what
-- became of what was learned, and the hashes of what was named. An erase that repeats another says
-- what that one said (`logged`), and which it was.
create or replace function afterturn.erase_detail(p_path text, p_request jsonb) returns jsonb
language sql stable as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'derived', p_request -> 'derived',
        'session', afterturn.named_key(p_path, 'session', p_request -> 'named' ->> 'session'),
        'turns', (select jsonb_agg(afterturn.named_key(p_path, 'turn', n) order by n)
            from jsonb_array_elements_text(p_request -> 'named' -> 'turn_ids') n),
        'records', (select jsonb_agg(afterturn.named_key(p_path, 'record', n) order by n)
            from jsonb_array_elements_text(p_request -> 'named' -> 'record_ids') n)))
        || coalesce(p_request -> 'logged', '{}')
$$;

-- What tells this installation from any other, without its key.
create or replace function afterturn.installation_id() returns text
language sql stable as $$ select encode(afterturn.scope_key(''), 'hex') $$;
