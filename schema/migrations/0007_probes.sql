-- Probes: `afterturn doctor` sends one through each queue, and the worker that takes it answers here.
-- `worker_at` is what the worker's own clock said then.
create table afterturn.probes (
    id uuid primary key,
    asked_at timestamptz not null,
    answered_at timestamptz,
    worker_at timestamptz,
    check ((answered_at is null) = (worker_at is null))
);
