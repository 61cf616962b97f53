-- What the sweep looks for and what a claim takes each get an index of their own, so that neither
-- depends on how much is held by workers, put back after a failure, or blocked. 0001's index held
-- all of that.
drop index afterturn.jobs_waiting;
create index jobs_swept on afterturn.jobs (ring_at)
    where blocked_by is null and (finished_at is null or releasing);
create index jobs_fresh on afterturn.jobs (kind, ring_at)
    where finished_at is null and blocked_by is null and attempts = 0;
drop index afterturn.jobs_ended;
create index jobs_ended on afterturn.jobs (outcome, finished_at)
    where finished_at is not null and not releasing;
drop function if exists afterturn.sweep_rings(integer, interval);
drop function if exists afterturn.sweep_releasing(integer);
