-- What the rows of `turns` and `jobs` promise, asked for by tests and operators instead of at each write.

-- Jobs that break a rule of the ledger, each with the rule's name. Empty when all is well.
create or replace function afterturn.ledger_faults() returns table (job_id bigint, fault text)
language sql stable as $$
    select j.id, rule.fault
    from afterturn.jobs j, lateral (values
        ('unknown kind',
            j.kind in ('record', 'extract', 'embed', 'flush', 'forget', 'expire')),
        ('unknown outcome',
            j.outcome is null or j.outcome in ('done', 'dead', 'superseded', 'requeued')),
        ('ended without an outcome, or an outcome without an end',
            (j.finished_at is null) = (j.outcome is null)),
        ('ended and leased', j.finished_at is null or j.lease_token is null),
        ('neither a path nor the key of an ended job',
            j.path is not null or (j.finished_at is not null and j.path_key is not null)),
        ('a turn where none belongs, or none where one does',
            (j.turn_id is not null) = (j.kind in ('record', 'extract'))),
        ('blocked without an order to keep',
            j.blocked_by is null or j.kind in ('flush', 'forget', 'expire')),
        ('releasing before its end', not j.releasing or j.finished_at is not null),
        ('negative attempts', j.attempts >= 0),
        ('not an object', jsonb_typeof(j.request) = 'object' and jsonb_typeof(j.counts) = 'object'
            and jsonb_typeof(j.receipt) = 'object'),
        ('a path key that is none', length(j.path_key) = 16)
    ) rule (fault, kept)
    where rule.kept is false
$$;

-- Turns that break a rule of their table, each with the rule's name. Empty when all is well.
create or replace function afterturn.turn_faults()
returns table (path text, turn_id text, fault text)
language sql stable as $$
    select t.path, t.turn_id, rule.fault
    from afterturn.turns t, lateral (values
        ('names that are not two', cardinality(t.names) = 2),
        ('not an object', jsonb_typeof(t.metadata) = 'object'),
        ('no token', cardinality(t.token) > 0),
        ('a negative count', t.recorded >= 0 and t.extracted >= 0),
        ('unknown outcome', t.outcome in ('waiting', 'done', 'degraded', 'dead')),
        ('recorded without a time, or a time without',
            (t.recorded is null) = (t.recorded_at is null)),
        ('extracted without a time, or a time without',
            (t.extracted is null) = (t.extracted_at is null))
    ) rule (fault, kept)
    where rule.kept is false
$$;
