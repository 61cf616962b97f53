"""The audit of turns and jobs finds what its rules forbid, each by name."""

from __future__ import annotations

import pytest

from tests.pipeline.conftest import ALICE, Desk

JOB_FAULTS = {
    "unknown kind": "kind = 'rumour', turn_id = null",
    "unknown outcome": "outcome = 'lost', finished_at = now()",
    "ended without an outcome, or an outcome without an end": "finished_at = now()",
    "ended and leased": "finished_at = now(), outcome = 'dead', lease_token = gen_random_uuid()",
    "neither a path nor the key of an ended job": "path = null",
    "a turn where none belongs, or none where one does": "turn_id = null",
    "blocked without an order to keep": "blocked_by = 1",
    "releasing before its end": "releasing = true",
    "negative attempts": "attempts = -1",
    "not an object": "request = '[]'",
    "a path key that is none": "path_key = '\\x00'",
}


@pytest.mark.parametrize("fault", JOB_FAULTS)
async def test_a_broken_rule_of_the_ledger_is_named(desk: Desk, fault: str) -> None:
    """A job with one rule broken: that rule is named, and no other."""
    job = (await desk.stage(ALICE, "t-1")).record_job
    assert await desk.rows("select * from afterturn.ledger_faults()") == []
    await desk.value(f"update afterturn.jobs set {JOB_FAULTS[fault]} where id = $1", job)
    found = await desk.rows("select * from afterturn.ledger_faults()")
    await desk.value("delete from afterturn.jobs where id = $1", job)
    assert [(row["job_id"], row["fault"]) for row in found] == [(job, fault)]


TURN_FAULTS = {
    "names that are not two": "names = array['one']",
    "not an object": "metadata = '[]'",
    "no token": "token = '{}'",
    "a negative count": "recorded = -1, recorded_at = now()",
    "unknown outcome": "outcome = 'lost'",
    "recorded without a time, or a time without": "recorded_at = now()",
    "extracted without a time, or a time without": "extracted = 1",
}


@pytest.mark.parametrize("fault", TURN_FAULTS)
async def test_a_broken_rule_of_turns_is_named(desk: Desk, fault: str) -> None:
    """A turn with one rule broken: that rule is named, and no other."""
    await desk.stage(ALICE, "t-1")
    assert await desk.rows("select * from afterturn.turn_faults()") == []
    await desk.value(f"update afterturn.turns set {TURN_FAULTS[fault]}")
    found = await desk.rows("select * from afterturn.turn_faults()")
    await desk.value("delete from afterturn.turns")
    assert found == [{"path": ALICE.stored_path, "turn_id": "t-1", "fault": fault}]
