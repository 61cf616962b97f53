-- The planner's statistics would keep samples of what was erased: names of scopes, ids, vectors.
-- What it has sampled before stays until `afterturn compact`.
alter table afterturn.turns alter column path set statistics 0,
    alter column turn_id set statistics 0, alter column reason set statistics 0;
alter table afterturn.memories alter column path set statistics 0,
    alter column record_id set statistics 0, alter column turn_path set statistics 0,
    alter column turn_id set statistics 0, alter column origin set statistics 0,
    alter column embedding set statistics 0;
alter index afterturn.memories_same_text alter column 2 set statistics 0;
alter table afterturn.memory_sources alter column path set statistics 0,
    alter column record_id set statistics 0, alter column turn_path set statistics 0,
    alter column turn_id set statistics 0;
alter table afterturn.fact_statements alter column path set statistics 0,
    alter column record_id set statistics 0, alter column turn_path set statistics 0,
    alter column turn_id set statistics 0, alter column digest set statistics 0;
alter table afterturn.token_usage alter column path set statistics 0;
alter table afterturn.jobs alter column path set statistics 0,
    alter column turn_id set statistics 0, alter column request set statistics 0,
    alter column reason set statistics 0;
alter table afterturn.schedules alter column path set statistics 0,
    alter column request set statistics 0;
alter table afterturn.erase_intents alter column path set statistics 0;
