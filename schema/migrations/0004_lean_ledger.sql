-- The ledger's checks go: thirteen of them were a quarter of what staging a turn costs beyond its
-- commit, and every row of the ledger is written by our own functions. `afterturn.ledger_faults`
-- says the same rules; tests and `afterturn doctor` ask it.
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
