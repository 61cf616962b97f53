-- The planner's statistics would keep the names of sessions that were erased.
alter table afterturn.turns alter column session set statistics 0;
alter table afterturn.memories alter column session set statistics 0;
