-- For the rules, as the index of the same shape on memories.
create index fact_statements_by_age on afterturn.fact_statements (layer, path, recorded_at);
