"""The protections of the storage protocol, how to take each away, and what must go red then.

A change names a file and a function in it (or none), a text that must stand there exactly once,
and what replaces it. A mutant whose text is not found, or that cannot run, is an error, so this
list cannot rot. Protections that carry the same safety are taken away together: alone they stay
green (`alone` says so and is checked, too), because the other one holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SCOPES: Final = "schema/functions/10_scopes.sql"
NUMBERS: Final = "schema/functions/20_generations.sql"
TURNS: Final = "schema/functions/30_turns.sql"
LEDGER: Final = "schema/functions/40_lifecycle.sql"
FORGET: Final = "schema/functions/50_forget.sql"

WRITES: Final = "schema/functions/60_writes.sql"

FORGETS: Final = "tests/pipeline/test_forget.py"
STEPPED: Final = "tests/pipeline/test_interleavings.py"
ORDER: Final = "tests/pipeline/test_order.py"
STAGING: Final = "tests/pipeline/test_staging.py"
PROMISES: Final = "tests/erase/test_promises.py"
STANDING: Final = "tests/erase/test_standing.py"
SEAMS: Final = "tests/erase/test_seams.py"
CIRCLES: Final = "tests/erase/test_circles.py"
REEMBED: Final = "tests/erase/test_reembed.py"
FENCE: Final = "tests/foundation/test_generations.py"


@dataclass(frozen=True)
class Change:
    """One edit."""

    file: str
    function: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """A protection (or several that carry the same), without it."""

    name: str
    invariant: str
    changes: tuple[Change, ...]
    tests: tuple[str, ...]
    alone: bool = False
    """Each change by itself stays green: the others carry the safety."""


ERASED: Final = "an erased turn is never written back"
SERVED: Final = "nothing is served under an erase"
ONCE: Final = "an effect happens once"
LATE: Final = "a late worker erases nothing new"
IN_ORDER: Final = "lifecycle jobs take effect in order"
LOST: Final = "nothing acknowledged is lost"
CIRCLE: Final = "no two operations wait in a circle"
UNNAMED: Final = "what was erased is not named again"

MUTANTS: Final = (
    Mutant(
        "token at stage",
        ERASED,
        (
            Change(
                TURNS,
                "stage_turn",
                "where c.erase is distinct from",
                "where false and c.erase is distinct from",
            ),
        ),
        (f"{STAGING}::test_a_turn_begun_before_an_erase_is_stale_and_its_text_never_lands",),
    ),
    Mutant(
        "token at apply",
        ERASED,
        (
            Change(
                TURNS,
                "apply_turns",
                "t.token is distinct from afterturn.token_of(afterturn.covering(t.path))",
                "false",
            ),
        ),
        (f"{PROMISES}::test_work_under_way_is_refused_after_an_adopters_own_erase",),
    ),
    Mutant(
        "the turn's row, the job's row and its lease at apply",
        ERASED,
        (
            Change(TURNS, "apply_turns", "when j.id is null then 'stale'", "when false then 'x'"),
            Change(
                TURNS,
                "apply_turns",
                "j.lease_token is distinct from (w ->> 'lease')::uuid",
                "j.lease_token <> (w ->> 'lease')::uuid",
            ),
            Change(
                TURNS,
                "apply_turns",
                "j.path is distinct from (w ->> 'path')",
                "j.path <> (w ->> 'path')",
            ),
            Change(
                TURNS,
                "apply_turns",
                "j.turn_id is distinct from (w ->> 'turn_id')",
                "j.turn_id <> (w ->> 'turn_id')",
            ),
            Change(
                TURNS, "apply_turns", "when t.turn_id is null then 'stale'", "when false then 'x'"
            ),
        ),
        (f"{FORGETS}::test_an_extraction_in_flight_writes_nothing_and_is_not_tried_again",),
    ),
    Mutant(
        "lease at apply",
        ERASED,
        (
            Change(
                TURNS,
                "apply_turns",
                "j.lease_token is distinct from (w ->> 'lease')::uuid",
                "false",
            ),
        ),
        (
            f"{FORGETS}::test_turns_of_another_conversation_are_kept_when_the_user_scope_is_advanced",
        ),
    ),
    Mutant(
        "EXCLUSIVE in the final transaction",
        ERASED,
        (
            Change(
                FORGET,
                "forget_final",
                "not afterturn.try_lock_exclusive(afterturn.lock_places(alone))",
                "false",
            ),
        ),
        (
            f"{STEPPED}::test_an_uncommitted_writer_holds_the_final_back_and_its_row_is_erased",
            f"{FORGETS}::test_a_forget_of_a_busy_scope_waits_for_the_writer_only",
        ),
    ),
    Mutant(
        "READ COMMITTED",
        ERASED,
        (Change(SCOPES, "require_read_committed", "<> 'read committed'", "= 'none'"),),
        (f"{STAGING}::test_a_repeatable_read_transaction_is_refused",),
    ),
    Mutant(
        "lock and check as separate statements",
        ERASED,
        (
            Change(
                TURNS,
                "stage_turn",
                """    foreach covering_path in array p_covers loop
        locked := pg_advisory_xact_lock_shared(afterturn.lock_key(0, covering_path))::text;
    end loop;
    with vouched as materialized (
        select from afterturn.installation n
        where not""",
                """    with vouched as materialized (
        select from afterturn.installation n, (
            select count(pg_advisory_xact_lock_shared(k.key)::text) as taken
            from (select afterturn.lock_key(0, c.path) as key
                from unnest(p_covers) c(path) order by 1) k offset 0) l
        where l.taken > 0 and not""",
            ),
        ),
        (f"{STEPPED}::test_a_stage_that_waited_is_judged_by_what_holds_after_the_wait",),
    ),
    Mutant(
        "the early look and the second one for intents at stage",
        ERASED,
        (
            Change(
                TURNS,
                "stage_turn",
                "exists (select from afterturn.erase_intents i where i.path = any(p_covers)) then",
                "false then",
            ),
            Change(
                TURNS,
                "stage_turn",
                """where not exists (
                select from afterturn.erase_intents i where i.path = any(p_covers))""",
                "where true",
            ),
        ),
        (f"{STAGING}::test_nothing_is_staged_while_an_erase_stands",),
        alone=True,
    ),
    Mutant(
        "the early look and the second one for intents at apply",
        ERASED,
        (
            Change(
                TURNS,
                "apply_turns",
                "(select afterturn.erasing(afterturn.covering(w ->> 'path')) as standing)",
                "(select false as standing)",
            ),
            Change(
                TURNS,
                "apply_turns",
                "when afterturn.erasing(afterturn.covering(t.path)) then 'erasing'",
                "when false then 'erasing'",
            ),
        ),
        (f"{FORGETS}::test_while_an_erase_stands_work_waits_and_costs_no_attempt",),
        alone=True,
    ),
    Mutant(
        "intents in retrieval",
        SERVED,
        (
            Change(
                NUMBERS,
                "read_state",
                "exists (select from afterturn.erase_intents e where e.path = any(covers))",
                "false",
            ),
        ),
        (f"{PROMISES}::test_nothing_is_served_from_the_request_on",),
    ),
    Mutant(
        "intents in plain reads",
        SERVED,
        (
            Change(
                "src/afterturn/reading.py",
                "",
                "if await conn.fetchval(_ERASING, scope.stored_path):",
                "if await conn.fetchval(_ERASING, scope.stored_path) and False:",
            ),
        ),
        (f"{PROMISES}::test_nothing_is_served_from_the_request_on",),
    ),
    Mutant(
        "the erase number in what readers go by",
        SERVED,
        (
            Change(
                NUMBERS,
                "move_erase",
                "content = afterturn.following(g.content, excluded.content),",
                "",
            ),
            Change(
                NUMBERS,
                "move_erase",
                "removed = afterturn.following(g.content, excluded.content)",
                "removed = g.removed",
            ),
            Change(
                NUMBERS,
                "read_state",
                "array_agg(coalesce(g.erase, 0) order by c.at)",
                "array_agg(0::bigint order by c.at)",
            ),
        ),
        (f"{PROMISES}::test_a_warm_reader_that_noticed_nothing_serves_nothing",),
    ),
    Mutant(
        "the content number in the transaction that publishes",
        SERVED,
        (
            Change(
                LEDGER,
                "flush_chunk",
                """from afterturn.move_content(
            case when moved < p_limit then paths || p_path else paths end, false) m;""",
                """from (select distinct p as path, 1::bigint as content
                from unnest(paths || p_path) p) m;""",
            ),
            Change(
                LEDGER,
                "flush_chunk",
                "from afterturn.move_content(array[p_path], false) m;",
                "from (select 1::bigint as content) m;",
            ),
        ),
        (f"{PROMISES}::test_a_flush_is_seen_by_whoever_has_read_before",),
    ),
    Mutant(
        "the content number of what is kept elsewhere",
        SERVED,
        (
            Change(
                FORGET,
                "forget_final",
                "perform afterturn.move_content(array[advanced], false);",
                "null;",
            ),
        ),
        (f"{FORGETS}::test_what_is_kept_names_neither_the_erased_scope_nor_its_turn",),
    ),
    Mutant(
        "the lease in the fence of lifecycle jobs",
        ONCE,
        (Change(LEDGER, "hold", "j.lease_token = p_lease_token and ", ""),),
        (f"{STEPPED}::test_a_second_final_of_one_erase_is_lost",),
    ),
    Mutant(
        "the lease and the unfinished predicate in the fence",
        LATE,
        (
            Change(
                LEDGER, "hold", "and j.lease_token = p_lease_token and j.finished_at is null", ""
            ),
        ),
        (f"{STEPPED}::test_a_zombie_of_a_named_erase_takes_nothing_of_the_sessions_new_life",),
    ),
    Mutant(
        "kind and path in the fence",
        LATE,
        (Change(LEDGER, "hold", "and j.kind = p_kind and j.path = p_path", ""),),
        (f"{STEPPED}::test_a_job_id_that_means_another_job_after_a_failover_is_fenced",),
    ),
    *(
        Mutant(
            f"the fence in {function}",
            LATE,
            (
                Change(
                    FORGET,
                    function,
                    f"if not afterturn.{fence}, p_path, p_lease_token, p_lease) then",
                    "if false then",
                ),
            ),
            (f"{STEPPED}::test_a_zombie_chunk_deletes_nothing_of_the_scopes_new_life",),
        )
        for function, fence in (
            ("forget_turns", "hold_chunk(p_id"),
            ("forget_memories", "hold_chunk(p_id"),
            ("forget_sources", "hold_chunk(p_id"),
            ("forget_said", "hold_chunk(p_id"),
            ("forget_turn_jobs", "hold_chunk(p_id"),
            ("forget_final", "hold(p_id, 'forget'"),
        )
    ),
    Mutant(
        "the locks of enqueuing",
        IN_ORDER,
        (Change(LEDGER, "enqueue_lifecycle", "perform afterturn.lock_lane(p_path);", ""),),
        (f"{STEPPED}::test_an_enqueue_that_overlaps_an_open_one_waits_and_stands_behind_it",),
    ),
    Mutant(
        "overlap with scopes above, not equality",
        IN_ORDER,
        (
            Change(
                LEDGER,
                "blocker",
                "j.path = any(trim_array(afterturn.covering(p_path), 1))",
                "j.path = p_path",
            ),
        ),
        (f"{ORDER}::test_overlapping_jobs_run_in_order_of_enqueuing",),
    ),
    Mutant(
        "overlap with scopes below",
        IN_ORDER,
        (
            Change(
                LEDGER,
                "blocker",
                "j.path >= p_path and j.path < afterturn.under_end(p_path)",
                "j.path = p_path",
            ),
        ),
        (f"{ORDER}::test_a_job_behind_several_is_free_when_the_last_of_them_ends",),
    ),
    Mutant(
        "the share lock on the blocker's row",
        IN_ORDER,
        (Change(LEDGER, "block", "            for share;", "            ;"),),
        (f"{STEPPED}::test_an_enqueue_beside_the_end_of_its_blocker_waits_for_it_and_is_free",),
    ),
    Mutant(
        "the row lock when a flush is reused",
        LOST,
        (
            Change(
                LEDGER,
                "enqueue_lifecycle",
                "j.lease_token is null and j.attempts = 0\n        for update;",
                "j.lease_token is null and j.attempts = 0;",
            ),
        ),
        (f"{ORDER}::test_a_coalesced_flush_is_not_claimed_before_the_caller_commits",),
    ),
    Mutant(
        "a known turn before the verdict",
        LOST,
        (
            Change(
                TURNS,
                "stage_turn",
                """if exists (select from afterturn.turns t
            where t.path = own_path and t.turn_id = p_turn_id) then""",
                "if false then",
            ),
        ),
        (
            f"{STAGING}::test_an_acknowledged_turn_is_known_after_an_erase_of_a_sibling_scope_moved_numbers",
        ),
    ),
    Mutant(
        "an acknowledgement that is on disk",
        LOST,
        (
            Change(
                SCOPES,
                "require_durable_commit",
                "current_setting('synchronous_commit') in ('off', 'local')",
                "false",
            ),
        ),
        (f"{STAGING}::test_an_acknowledgement_is_on_disk_whatever_the_role_says",),
    ),
    Mutant(
        "new tokens for acknowledged turns beside the erase",
        LOST,
        (Change(FORGET, "forget_final", "perform afterturn.refresh_tokens(advanced);", "null;"),),
        (
            f"{FORGETS}::test_turns_of_another_conversation_are_kept_when_the_user_scope_is_advanced",
            f"{FORGETS}::test_turns_not_named_are_kept_and_those_only_begun_become_stale",
        ),
    ),
    Mutant(
        "ledger rows of the erased turns, in chunks and in the final",
        ERASED,
        (
            Change(
                FORGET, "forget_turn_jobs", "order by w.id limit p_limit", "order by w.id limit 0"
            ),
            Change(
                FORGET,
                "forget_rest",
                "and j.kind in ('record', 'extract', 'embed');",
                "and false;",
            ),
        ),
        (f"{FORGETS}::test_everything_under_the_scope_goes_in_every_state",),
    ),
    Mutant(
        "the turns' rows, in chunks and in the final",
        ERASED,
        (
            Change(
                FORGET,
                "forget_turns",
                "order by w.path, w.turn_id limit p_limit",
                "order by w.path, w.turn_id limit 0",
            ),
            Change(
                FORGET,
                "forget_rest",
                """delete from afterturn.turns t
    where t.path >= p_path""",
                """delete from afterturn.turns t
    where false and t.path >= p_path""",
            ),
        ),
        (
            f"{FORGETS}::test_everything_under_the_scope_goes_in_every_state",
            f"{PROMISES}::test_the_scope_is_of_use_at_once",
        ),
    ),
    Mutant(
        "the advance of outside scopes",
        ERASED,
        (
            Change(
                FORGET,
                "forget_final",
                """        else
            perform afterturn.move_erase(advanced);""",
                """        else
            perform afterturn.move_content(array[advanced], true);""",
            ),
            Change(
                FORGET,
                "forget_final",
                "for advanced in select unnest(alone[2:]) loop",
                "for advanced in select unnest('{}'::text[]) loop",
            ),
        ),
        (f"{FORGETS}::test_erase_takes_what_was_learned_elsewhere",),
    ),
    Mutant(
        "what was learned elsewhere",
        ERASED,
        (
            Change(
                FORGET,
                "forget_final",
                "perform afterturn.forget_derived(p_id, p_path, heard_ids, named_session, alone);",
                "null;",
            ),
        ),
        (f"{FORGETS}::test_erase_takes_what_was_learned_elsewhere",),
    ),
    Mutant(
        "the judgement of a write's sources",
        UNNAMED,
        (
            Change(
                WRITES,
                "write_records",
                "erased := array(select afterturn.with_erased_sources(p_path, p_records));",
                "null;",
            ),
        ),
        (
            f"{SEAMS}::test_a_write_cannot_name_what_was_erased",
            f"{SEAMS}::test_a_write_that_waited_for_an_erase_of_its_source_is_refused",
        ),
    ),
    Mutant(
        "the erase that waits for a change of model",
        UNNAMED,
        (
            Change(
                FORGET,
                "forget_final",
                "not pg_try_advisory_xact_lock_shared(1634100325, 1)",
                "false",
            ),
        ),
        (
            f"{REEMBED}::test_a_change_of_model_leaves_no_job_of_an_erased_scope",
            f"{REEMBED}::test_a_change_of_model_and_an_erase_never_wait_in_a_circle",
        ),
    ),
    Mutant(
        "the turns that tell of which session something kept is",
        ERASED,
        (Change(FORGET, "forget_turns", "not (keeps and exists", "not (false and exists"),),
        (f"{FORGETS}::test_what_a_scopes_erase_kept_is_found_by_its_session",),
    ),
    Mutant(
        "waiting records before numbers",
        CIRCLE,
        (
            Change(
                FORGET,
                "forget_final",
                "perform afterturn.hold_pending(p_path, source_ids, named_session, outside);",
                "null;",
            ),
        ),
        (
            f"{CIRCLES}::test_an_erase_and_a_flush_of_what_was_learned_from_it",
            f"{CIRCLES}::test_an_erase_that_keeps_and_a_write_in_place_of_what_it_keeps",
        ),
    ),
    Mutant(
        "the order of the erase log's chains",
        CIRCLE,
        (Change(FORGET, "forget_final", "perform afterturn.hold_erase_log(alone);", "null;"),),
        (f"{CIRCLES}::test_two_erases_that_reach_into_each_others_roots",),
    ),
    Mutant(
        "the waking of jobs that waits for none",
        CIRCLE,
        (Change(LEDGER, "unblock", "for share skip locked;", "for share;"),),
        (f"{CIRCLES}::test_a_flush_that_yields_and_what_wakes_the_erase_it_yields_to",),
    ),
    Mutant(
        "what was noted by an erased turn beside the words of a fact",
        ERASED,
        (
            Change(
                FORGET,
                "forget_derived",
                "then coalesce((select",
                "then m.metadata || coalesce((select",
            ),
        ),
        (f"{FORGETS}::test_a_fact_that_keeps_a_source_keeps_nothing_else_of_the_erased_turn",),
    ),
    Mutant(
        "what was learned from a message that is erased",
        ERASED,
        (
            Change(
                FORGET,
                "heard_turns",
                "jsonb_array_elements_text(p_request -> 'named' -> 'record_ids'))) s",
                "jsonb_array_elements_text(p_request -> 'named' -> 'turn_ids'))) s",
            ),
        ),
        (
            f"{FORGETS}::test_what_was_learned_from_a_named_message_goes_"
            "and_the_other_is_read_again",
        ),
    ),
    Mutant(
        "the look at intents before a model is shown anything",
        SERVED,
        (
            Change(
                "src/afterturn/jobs/ledger.py",
                "",
                "where afterturn.erasing(afterturn.covering(p.path))\n",
                "where false\n",
            ),
        ),
        (f"{STANDING}::test_work_under_a_standing_erase_waits_without_being_looked_at",),
    ),
    Mutant(
        "a flush that is never waited for",
        CIRCLE,
        (Change(FORGET, "forget_final", "for update skip locked", "for update"),),
        (f"{CIRCLES}::test_an_erase_and_what_wakes_a_flush_that_it_covers",),
    ),
    Mutant(
        "an adopter's lock before the check",
        ERASED,
        (
            Change(
                "src/afterturn/generations.py",
                "",
                """        await lock(conn, [path])
        await _require_exact(conn, path, vector)""",
                "        await _require_exact(conn, path, vector)",
            ),
        ),
        (
            f"{FENCE}::test_what_was_fenced_is_either_erased_or_refused",
            f"{FENCE}::test_locks_of_require_last_until_the_transaction_ends",
        ),
    ),
    Mutant(
        "the exclusive lock that advancing needs",
        ERASED,
        (Change("src/afterturn/generations.py", "", "    if not held:\n", "    if False:\n"),),
        ("tests/foundation/test_advancing.py::test_advancing_needs_the_exclusive_lock",),
    ),
)
