-- The checks of the two tables that staging a turn writes go: twenty of them were a quarter of what
-- it costs beyond its commit, and their rows are written by our own functions only.
-- `afterturn.ledger_faults` and `turn_faults` say the same rules; tests and `afterturn doctor` ask.
alter table afterturn.jobs
    drop constraint jobs_kind_check,
    drop constraint jobs_path_key_check,
    drop constraint jobs_attempts_check,
    drop constraint jobs_request_check,
    drop constraint jobs_counts_check,
    drop constraint jobs_receipt_check,
    drop constraint jobs_outcome_check,
    drop constraint jobs_check,
    drop constraint jobs_check1,
    drop constraint jobs_check2,
    drop constraint jobs_check3,
    drop constraint jobs_check4,
    drop constraint jobs_check5;
alter table afterturn.turns
    drop constraint turns_names_check,
    drop constraint turns_metadata_check,
    drop constraint turns_token_check,
    drop constraint turns_recorded_check,
    drop constraint turns_extracted_check,
    drop constraint turns_outcome_check,
    drop constraint turns_check,
    drop constraint turns_check1;
