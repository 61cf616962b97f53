-- What the sweep looks for and what a claim takes each get an index of their own, so that neither
-- depends on how much is held by workers, put back for later, or blocked: 0001 held all of that in
-- one.
drop index afterturn.jobs_waiting;
create index jobs_waiting on afterturn.jobs (kind, ready_at)
    where finished_at is null and blocked_by is null and lease_token is null;
create index jobs_swept on afterturn.jobs (ring_at)
    where blocked_by is null and (finished_at is null or releasing);
drop index afterturn.jobs_ended;
create index jobs_ended on afterturn.jobs (outcome, finished_at)
    where finished_at is not null and not releasing;
drop function if exists afterturn.sweep_rings(integer, interval);
drop function if exists afterturn.sweep_releasing(integer);
drop function if exists afterturn.claim_turns(text, bigint[], integer, boolean, integer, interval);
