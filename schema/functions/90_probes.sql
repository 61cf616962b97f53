-- Probes of `afterturn doctor`: rows that prove that a queue has a worker and it has the database.

-- Makes the probes and takes away those of earlier days.
create or replace function afterturn.ask_probes(p_ids uuid[]) returns void
language plpgsql as $$
begin
    delete from afterturn.probes p where p.asked_at < afterturn.clock() - interval '1 day';
    insert into afterturn.probes (id, asked_at) select unnest(p_ids), afterturn.clock();
end $$;

-- Answers a probe once; false when there is none that waits.
create or replace function afterturn.answer_probe(p_id uuid, p_worker_at timestamptz)
returns boolean
language plpgsql as $$
begin
    update afterturn.probes p set answered_at = clock_timestamp(), worker_at = p_worker_at
    where p.id = p_id and p.answered_at is null;
    return found;
end $$;
