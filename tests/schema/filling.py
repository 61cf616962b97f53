"""Rows of every kind and in every state under one scope, each column with a word to look for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from afterturn.generations import vector_of
from afterturn.intake import checked_metadata
from afterturn.jobs.ledger import ClaimedTurn
from afterturn.jobs.tally import Tally
from afterturn.lifecycle import Derived, forget_request
from afterturn.pipeline.applying import turn_work
from afterturn.pipeline.staging import StagedTurn, stage
from afterturn.records import MemoryLayer, MemoryRecord, Source
from afterturn.scope import MemoryScope, scope_from_path
from afterturn.writes import WriteRequest
from afterturn.writing import PostgresWriting
from tests.pipeline.conftest import Desk

# In ids, too: an erase leaves none of them.
MARKER: Final = "zanzibar"
USER: Final = "quux-alice"
REQUESTER: Final = "officer-7"
KEPT: Final = "kept for bob"

ACME: Final = MemoryScope.of("acme")
ALICE: Final = ACME.child(USER)
CHAT: Final = ALICE.child(f"chat-{MARKER}")
BOB: Final = ACME.child("bob")

_SOON: Final = timedelta(seconds=5)
_LEASE: Final = timedelta(seconds=30)


async def fill(desk: Desk, *, derived: Derived = "erase") -> int:
    """Fill ALICE, its neighbour BOB and ACME above; returns the forget of ALICE, requested."""
    await _written(desk)
    for turn_id in ("extracted", "degraded", "retried", "leased", "waiting"):
        await _stage(desk, CHAT, f"{turn_id}-{MARKER}", text=f"said {MARKER}")
    await _stage(desk, BOB, "of-bob", text=KEPT, session="s-bob")
    await _turns(desk)
    await _vectors(desk)
    await _lifecycle_jobs(desk)
    await _schedules(desk)
    request = forget_request(derived=derived, requested_by=REQUESTER, reason=REQUESTER)
    return await desk.enqueue("forget", ALICE, request)


async def insist(desk: Desk, job_id: int) -> None:
    """Mark the scopes outside, too, as a forget does that finds them busy."""
    job = await desk.claim_job(job_id)
    assert job is not None
    assert await desk.value(
        "select afterturn.forget_insist($1, $2, $3, $4)",
        job_id,
        job.lease.token,
        job.stored_path,
        _LEASE,
    )


def record(
    scope: MemoryScope, record_id: str, text: str, *sources: Source, origin: str = "extracted"
) -> MemoryRecord:
    return MemoryRecord(
        record_id=record_id,
        text=text,
        scope_path=scope.path,
        layer=MemoryLayer.SEMANTIC,
        origin=origin,
        metadata={"about": text},
        sources=sources,
    )


def stated(scope: MemoryScope, *sources: Source) -> MemoryRecord:
    """A fact with a key, and so with a history."""
    text = f"home is {MARKER}"
    plain = record(scope, f"about-{MARKER}", text, *sources, origin=f"by {MARKER}")
    return plain.model_copy(update={"metadata": {"subject": MARKER, "attribute": "home"}})


async def _written(desk: Desk) -> None:
    """Direct writes: published, pending, and pending beside the published row it replaces."""
    writing = PostgresWriting(desk.database, desk.settings)

    async def write(scope: MemoryScope, record_id: str, text: str) -> None:
        written = record(scope, record_id, text, origin=f"by {text}")
        receipt = await writing.write(WriteRequest(scope=scope, records=(written,)))
        assert receipt.outcomes[0].status in ("pending", "updated")

    for scope in (ALICE, CHAT):
        await write(scope, f"w-{MARKER}", MARKER)
    await desk.flush(ALICE)
    await write(ALICE, f"w-{MARKER}", f"again {MARKER}")
    await write(CHAT, f"pending-{MARKER}", MARKER)


async def _stage(
    desk: Desk, scope: MemoryScope, turn_id: str, *, text: str, session: str = f"s-{MARKER}"
) -> None:
    staged = StagedTurn(
        scope=scope,
        turn_id=turn_id,
        token=vector_of(scope.path, await desk.token(scope)),
        session=session,
        query=text,
        answer=text,
        names=(text, text) if MARKER in text else None,
        metadata=checked_metadata({"caption": text} if MARKER in text else None),
        occurred_at=None,
    )
    assert (await stage(desk.database, staged, ring_after=_SOON)).verdict == "staged"


async def _turns(desk: Desk) -> None:
    """Turns that are extracted, degraded, tried again, under a worker's hands, or waiting."""
    for scope, turn_id in [
        (BOB, "of-bob"),
        *((CHAT, f"{each}-{MARKER}") for each in ("extracted", "degraded", "leased")),
    ]:
        await desk.recorder.record([await _claim(desk, "record", scope, turn_id)], Tally())

    turn = await _claim(desk, "extract", CHAT, f"extracted-{MARKER}")
    own = Source(turn_id=turn.turn_id, turn_path=CHAT.path)
    of_bob = Source(turn_id="of-bob", turn_path=BOB.path)
    facts = [
        *(record(at, f"f-{MARKER}", f"learned {MARKER}", own) for at in (CHAT, ALICE, ACME)),
        record(ACME, "both", "said by two", own, of_bob),
        *(stated(at, own) for at in (CHAT, ALICE, ACME)),
    ]
    work = [turn_work(turn, facts, reason=f"noted {MARKER}")]
    await desk.applier.apply("extract", [turn], work, Tally())

    degraded = await _claim(desk, "extract", CHAT, f"degraded-{MARKER}")
    await desk.value(
        "select afterturn.fail_turn_job($1, $2, $3, 1, '0')",
        degraded.lease.job_id,
        degraded.lease.token,
        f"dead of {MARKER}",
    )
    retried = await _claim(desk, "record", CHAT, f"retried-{MARKER}")
    await desk.ledger.fail_turn(retried.lease, f"failed on {MARKER}")
    await _claim(desk, "extract", CHAT, f"leased-{MARKER}")


async def _claim(desk: Desk, kind: Any, scope: MemoryScope, turn_id: str) -> ClaimedTurn:
    job_id = await desk.value(
        "select id from afterturn.jobs where path=$1 and turn_id=$2 and kind=$3",
        scope.stored_path,
        turn_id,
        kind,
    )
    return await desk.claim(kind, job_id)


async def _vectors(desk: Desk) -> None:
    """An embed job at each path: done at CHAT with its vector, leased at ALICE, waiting else."""
    rows = await desk.rows("select id, path from afterturn.jobs where kind = 'embed' order by id")
    jobs = {row["path"]: row["id"] for row in rows}
    done = await desk.ledger.claim_embed([jobs[CHAT.stored_path]])
    assert done is not None
    (row,) = await desk.rows(
        "select record_id, revision from afterturn.memories "
        "where path = $1 and record_id like 'f-%' and not pending",
        CHAT.stored_path,
    )
    vector = MARKER.encode() * 4
    verdict = await desk.ledger.apply_embed(
        done, [row["record_id"]], [row["revision"]], [vector], last=True
    )
    assert verdict == "done"
    assert await desk.ledger.claim_embed([jobs[ALICE.stored_path]]) is not None


async def _schedules(desk: Desk) -> None:
    """An erase to come, one that was cancelled, and a rule."""
    schedule = "select id from afterturn.schedule_forget($1, now() + interval '1 day', $2::jsonb)"
    request = forget_request(derived="erase", requested_by=REQUESTER, reason=MARKER)
    await desk.value(schedule, CHAT.stored_path, request)
    cancelled = await desk.value(schedule, ALICE.stored_path, request)
    await desk.value("select id from afterturn.cancel_schedule($1)", cancelled)
    await desk.value(
        "select id from afterturn.add_rule($1, 'semantic', 86400, null, null)", CHAT.stored_path
    )


async def _lifecycle_jobs(desk: Desk) -> None:
    """Ended in every way, and flushes that still wait when the forget is requested."""
    named = {"record_ids": [], "turn_ids": [f"unknown-{MARKER}"]}
    await desk.forget(CHAT, named=named)
    await desk.forget(ALICE.child(f"gone-{MARKER}"))
    expire = await desk.enqueue("expire", CHAT, {"rule": MARKER})
    assert await desk.claim_job(expire) is not None
    await desk.value("select afterturn.end_lifecycle($1, 'done', '{}')", expire)

    failing = await desk.enqueue("flush", CHAT, {"note": MARKER})
    job = await desk.claim_job(failing)
    assert job is not None
    later = await desk.enqueue_forget(scope_from_path(CHAT.path).child("deep"))
    assert (await desk.ledger.fail_lifecycle(job.lease, f"failed on {MARKER}"))[0] == "requeued"
    await desk.ledger.unblock(failing)
    assert await desk.run(later) == "forgot 1"
    await desk.enqueue("flush", ALICE)
