"""Forget: everything under the scope, nothing beside it, and what was learned from it elsewhere."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from afterturn.errors import ErasedScope, ErasePending, StaleTurn
from afterturn.jobs.tally import Tally
from afterturn.lifecycle import Derived
from afterturn.records import MemoryRecord, Source
from afterturn.scope import MemoryScope
from afterturn.writes import WriteRequest
from afterturn.writing import PostgresWriting
from tests.pipeline.conftest import ALICE, CHAT_1, CHAT_2, Desk, fact

LEFT = """
select (select count(*) from afterturn.turns) + (select count(*) from afterturn.memories)
    + (select count(*) from afterturn.memory_sources)
    + (select count(*) from afterturn.erase_intents)
    + (select count(*) from afterturn.jobs where finished_at is null)
"""

# The embed job of a scope that stays may wait on.
LEFT_OF_TEXT = LEFT.replace("finished_at is null", "finished_at is null and kind <> 'embed'")


async def learn(desk: Desk, scope: MemoryScope, turn_id: str, *facts: MemoryRecord) -> str:
    """Stage and record a turn, and apply these facts as its extraction."""
    staged = await desk.stage(scope, turn_id)
    await desk.record(staged)
    return await desk.extract(await desk.claim_extract(scope, turn_id), *facts)


def source(scope: MemoryScope, turn_id: str) -> Source:
    return Source(turn_id=turn_id, turn_path=scope.path)


@pytest.mark.parametrize("chunk_rows", [1, 3, 2_000])
async def test_everything_under_the_scope_goes_in_every_state(desk: Desk, chunk_rows: int) -> None:
    """Staged, recorded, extracted, embedded, pending and published rows, in chunks of any size."""
    desk.lifecycle._settings = desk.settings.model_copy(update={"chunk_rows": chunk_rows})
    writing = PostgresWriting(desk.database, desk.settings)
    for n, scope in enumerate((ALICE, CHAT_1, CHAT_2)):
        await learn(desk, scope, f"t{n}", fact(ALICE, f"f{n}", "a fact", [source(scope, f"t{n}")]))
        await desk.stage(scope, f"waiting-{n}")
        await writing.write(WriteRequest(scope=scope, records=(fact(scope, "w", "written"),)))
        await desk.flush(scope)
        await writing.write(WriteRequest(scope=scope, records=(fact(scope, "w", "again"),)))
    assert await desk.forget(ALICE) == "forgot 1"
    assert await desk.value(LEFT) == 0


async def test_nothing_beside_the_scope_is_touched(desk: Desk) -> None:
    """Scopes whose names only look alike keep their rows, their numbers and their jobs."""
    names = ["u1", "u10", "u_1", "uX1", "u%", "u"]
    scopes = [MemoryScope.of("acme", name) for name in names]
    for scope in scopes:
        await learn(desk, scope, "t", fact(scope, "f", f"of {scope.path}"))
    for number, scope in enumerate(scopes):
        kept = await desk.texts()
        await desk.forget(scope)
        assert await desk.texts() == [row for row in kept if row[0] != scope.stored_path], number


async def test_a_forget_of_nothing_leaves_others_as_they_were(desk: Desk) -> None:
    """An empty scope: an empty receipt, its number moves, every other row is byte-identical."""
    await learn(desk, CHAT_1, "t", fact(CHAT_1, "f", "kept"))
    before = await desk.rows("select * from afterturn.memories order by path, record_id")
    job_id = await desk.enqueue_forget(CHAT_2)
    await desk.run(job_id)
    assert await desk.rows("select * from afterturn.memories order by path, record_id") == before
    assert await desk.value("select counts from afterturn.jobs where id=$1", job_id) == {}
    assert [number for _, number in await desk.token(CHAT_2)] != []
    assert await desk.token(CHAT_1) == ()


async def test_an_extraction_in_flight_writes_nothing_and_is_not_tried_again(desk: Desk) -> None:
    """The model answers after the erase: its job is gone, the answer is refused."""
    turn = await desk.extract_job(CHAT_1, "t1")
    await desk.forget(CHAT_1)
    told = await desk.extract(turn, fact(CHAT_1, "f", "back"), fact(ALICE, "g", "promoted"))
    assert told == "refused: stale turn"
    assert await desk.value(LEFT) == 0


async def test_the_scope_is_usable_at_once_and_only_the_new_turn_is_there(desk: Desk) -> None:
    """Even with the same turn id, while the old model call still runs."""
    old = await desk.extract_job(CHAT_1, "t1")
    await desk.forget(ALICE)
    new = await desk.extract_job(CHAT_1, "t1")
    assert await desk.extract(old, fact(ALICE, "f", "old")) == "refused: stale turn"
    assert await desk.extract(new, fact(ALICE, "f", "new")) == "extracted 1"
    facts = [text for path, text in await desk.texts() if path == ALICE.stored_path]
    assert facts == ["new"]


async def test_while_an_erase_stands_work_waits_and_costs_no_attempt(desk: Desk) -> None:
    """Between request and receipt a worker's result is put off, not lost and not written."""
    staged = await desk.stage(CHAT_1, "t1")
    turn = await desk.claim("record", staged.record_job)
    erase = await desk.enqueue_forget(CHAT_1, named={"record_ids": ["x"], "turn_ids": []})
    tally = Tally()
    await desk.recorder.record([turn], tally)
    assert str(tally) == "erasing 1"
    assert (
        await desk.value("select attempts from afterturn.jobs where id=$1", turn.lease.job_id) == 0
    )
    await desk.run(erase)
    await desk.expire_lease(staged.record_job)
    assert await desk.record(staged) == "recorded 1"


async def test_keep_leaves_what_was_learned_elsewhere_and_counts_it(desk: Desk) -> None:
    """The strict forget stays inside its scope."""
    await learn(desk, CHAT_1, "t1", fact(ALICE, "f", "promoted", [source(CHAT_1, "t1")]))
    job_id = await desk.enqueue_forget(CHAT_1, derived="keep")
    await desk.run(job_id)
    assert await desk.texts() == [(ALICE.stored_path, "promoted")]
    receipt = await desk.value("select receipt from afterturn.jobs where id=$1", job_id)
    assert receipt["derived_outside"] == 1
    assert await desk.token(ALICE) == ()


async def test_erase_takes_what_was_learned_elsewhere(desk: Desk) -> None:
    """A promoted fact goes with its only source, and the scope it stood in is advanced."""
    await learn(desk, CHAT_1, "t1", fact(ALICE, "f", "promoted", [source(CHAT_1, "t1")]))
    await desk.forget(CHAT_1)
    assert await desk.value(LEFT_OF_TEXT) == 0
    assert [path for path, _ in await desk.token(CHAT_2)] == [ALICE.path]


async def test_a_fact_with_two_sources_goes_with_the_second(desk: Desk) -> None:
    """First it keeps the other source and stands on it, then nothing is left, no orphan either."""
    both = [source(CHAT_1, "t1"), source(CHAT_2, "t2")]
    await learn(desk, CHAT_1, "t1")
    await learn(desk, CHAT_2, "t2", fact(ALICE, "f", "shared", both))
    await desk.value("update afterturn.memories set embedding = '\\x0000' where record_id = 'f'")
    await desk.forget(CHAT_2)
    rows = await desk.rows(
        """
        select m.text, m.turn_path, m.turn_id, s.turn_path as source,
            m.embedding is not null as e
        from afterturn.memories m
        join afterturn.memory_sources s using (path, record_id, pending)
        where m.record_id = 'f'
        """
    )
    assert rows == [
        {
            "text": "shared",
            "turn_path": CHAT_1.stored_path,
            "turn_id": "t1",
            "source": CHAT_1.stored_path,
            "e": True,
        }
    ]
    await desk.forget(CHAT_1)
    assert await desk.value(LEFT_OF_TEXT) == 0


async def test_turns_of_another_conversation_are_kept_when_the_user_scope_is_advanced(
    desk: Desk,
) -> None:
    """Acknowledged before: recorded and extracted all the same. Only begun: stale."""
    await learn(desk, CHAT_1, "t1", fact(ALICE, "f", "of chat 1", [source(CHAT_1, "t1")]))
    begun = await desk.token(CHAT_2)
    working = await desk.extract_job(CHAT_2, "t2")
    staged = await desk.stage(CHAT_2, "t2b")
    await desk.forget(CHAT_1)
    assert (await desk.stage(CHAT_2, "t3", token=begun)).verdict == "stale"
    # What was under way is refused once and done again.
    assert await desk.extract(working, fact(ALICE, "g", "of chat 2")) == "refused: lease lost"
    again = await desk.claim_extract(CHAT_2, "t2")
    sources = [source(CHAT_2, "t2")]
    assert await desk.extract(again, fact(ALICE, "g", "of chat 2", sources)) == "extracted 1"
    assert await desk.record(staged) == "recorded 1"
    assert (ALICE.stored_path, "of chat 2") in await desk.texts()
    assert (ALICE.stored_path, "of chat 1") not in await desk.texts()


async def test_a_named_turn_goes_and_its_neighbours_stay(desk: Desk) -> None:
    """Records, facts and transcript of the turn, in the scope and above it."""
    for turn_id in ("t1", "t2"):
        await learn(
            desk,
            CHAT_1,
            turn_id,
            fact(CHAT_1, f"own-{turn_id}", f"own {turn_id}", [source(CHAT_1, turn_id)]),
            fact(ALICE, f"up-{turn_id}", f"up {turn_id}", [source(CHAT_1, turn_id)]),
        )
    await desk.forget(CHAT_1, named={"record_ids": [], "turn_ids": ["t1"]})
    rows = await desk.rows("select distinct turn_id from afterturn.memories")
    assert [row["turn_id"] for row in rows] == ["t2"]
    assert len(await desk.texts()) == 6
    assert await desk.value("select string_agg(turn_id, '') from afterturn.turns") == "t2"
    assert await desk.value("select count(*) from afterturn.erase_intents") == 0


async def test_a_named_session_goes(desk: Desk) -> None:
    """All turns of the session, recorded or still waiting; other sessions stay."""
    for turn_id, session in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        staged = await desk.stage(CHAT_1, turn_id, session=session)
        if turn_id != "a2":
            await desk.record(staged)
    await desk.forget(CHAT_1, named={"record_ids": [], "turn_ids": [], "session": "a"})
    assert await desk.value("select string_agg(turn_id, '') from afterturn.turns") == "b1"
    assert await desk.value("select count(*) from afterturn.memories where session = 'b'") == 4
    assert len(await desk.texts()) == 4
    open_jobs = (
        "select count(*) from afterturn.jobs where turn_id like 'a%' and finished_at is null"
    )
    assert await desk.value(open_jobs) == 0


async def test_a_named_message_goes_from_both_layers_and_the_transcript(desk: Desk) -> None:
    """One side of a turn is one message, wherever it is kept; the other side stays."""
    await desk.record(await desk.stage(CHAT_1, "t1", query="secret", answer="fine"))
    await desk.forget(CHAT_1, named={"record_ids": ["t1:user:episodic"], "turn_ids": []})
    assert [text for _, text in await desk.texts()] == ["fine", "fine"]
    rows = await desk.rows("select query, answer from afterturn.turns")
    assert rows == [{"query": None, "answer": "fine"}]


async def test_turns_not_named_are_kept_and_those_only_begun_become_stale(desk: Desk) -> None:
    """What was begun could have read the record and could write it back."""
    begun = await desk.token(CHAT_1)
    staged = await desk.stage(CHAT_1, "t1")
    await desk.forget(CHAT_1, named={"record_ids": ["r"], "turn_ids": []})
    assert await desk.record(staged) == "recorded 1"
    assert (await desk.stage(CHAT_1, "t2", token=begun)).verdict == "stale"


async def test_writes_are_fenced_like_turns(desk: Desk) -> None:
    """Under an erase refused; after it, only a fresh token passes."""
    writing = PostgresWriting(desk.database, desk.settings)
    old = await desk.token(ALICE)
    request = WriteRequest(scope=ALICE, records=(fact(ALICE, "w", "text"),))
    erase = await desk.enqueue_forget(ALICE)
    with pytest.raises(ErasePending):
        await writing.write(request)
    await desk.run(erase)
    with pytest.raises(ErasedScope):
        await writing.write(request)
    with pytest.raises(StaleTurn):
        await writing.write(request.model_copy(update={"token": old}))
    token = await desk.token(ALICE)
    receipt = await writing.write(request.model_copy(update={"token": token}))
    assert receipt.outcomes[0].status == "pending"
    assert await desk.texts(pending=True) == [(ALICE.stored_path, "text")]


async def test_a_forget_of_a_busy_scope_waits_for_the_writer_only(desk: Desk) -> None:
    """An open writer holds the final back; another user's writer is never held up by it."""
    erase = await desk.enqueue_forget(CHAT_1)
    job = await desk.claim_job(erase)
    assert job is not None
    final = "select verdict from afterturn.forget_final($1, $2, $3, '30s')"
    fence = (job.lease.job_id, job.lease.token, job.stored_path)
    async with desk.database.connection() as conn, conn.transaction():
        await conn.execute("select afterturn.lock_shared($1)", [CHAT_1.stored_path])
        assert await desk.value(final, *fence) == "busy"
        assert (await desk.stage(CHAT_2, "t")).verdict == "staged"
    assert await desk.value(final, *fence) == "done"


async def test_the_log_is_chained_per_root_and_has_no_readable_path(desk: Desk) -> None:
    """Each entry's hash is that of its fields and of the entry before it."""
    for scope in (CHAT_1, MemoryScope.of("other"), ALICE):
        await desk.forget(scope)
    rows = await desk.rows(
        "select *, afterturn.erase_log_hash(previous_hash, root_key, scope_key, generation, job_id,"
        " requested_by, reason, requested_at, completed_at, counts, what, detail)"
        " as expected from afterturn.erase_log order by id"
    )
    assert len(rows) == 3
    assert all(row["hash"] == row["expected"] for row in rows)
    assert rows[2]["previous_hash"] == rows[0]["hash"]
    assert rows[1]["root_key"] != rows[0]["root_key"]
    assert "acme" not in repr(rows)


@pytest.mark.parametrize("first", ["t1", "t2"])
async def test_a_fact_that_keeps_a_source_keeps_nothing_else_of_the_erased_turn(
    desk: Desk, first: str
) -> None:
    """What an extractor noted beside the words came from the turn that said them last."""
    scopes = {"t1": CHAT_1, "t2": CHAT_2}
    for turn_id in sorted(scopes, key=lambda each: each != first):
        await desk.record(await desk.stage(scopes[turn_id], turn_id, session=f"s-{turn_id}"))
    for turn_id, scope in scopes.items():
        learned = fact(ALICE, "f", "likes tea", [source(scope, turn_id)])
        noted = {"quote": f"of {turn_id}", "session": f"s-{turn_id}"}
        claimed = await desk.claim_extract(scope, turn_id)
        await desk.extract(claimed, learned.model_copy(update={"metadata": noted}))
    await desk.forget(CHAT_1)
    (row,) = await desk.rows("select * from afterturn.memories where record_id = 'f'")
    assert (row["text"], row["turn_id"], row["session"]) == ("likes tea", "t2", "s-t2")
    assert "t1" not in repr(row["metadata"])
    if first == "t1":  # the other one said it last
        assert row["metadata"] == {"quote": "of t2", "session": "s-t2"}


async def test_a_record_that_keeps_a_source_is_of_no_erased_session(desk: Desk) -> None:
    """What was written directly with sources of two sessions, one of which is erased."""
    for turn_id in ("t1", "t2"):
        await desk.record(await desk.stage(CHAT_1, turn_id, session=f"s-{turn_id}"))
    both = [source(CHAT_1, turn_id) for turn_id in ("t1", "t2")]
    record = fact(CHAT_1, "w", "written", both)
    noted = {"session": "s-t1", "kept": "mine"}
    writing = PostgresWriting(desk.database, desk.settings)
    request = WriteRequest(
        scope=CHAT_1, records=(record.model_copy(update={"metadata": noted}),), token=()
    )
    await writing.write(request)
    named = {"record_ids": [], "turn_ids": [], "session": "s-t1"}
    await desk.forget(CHAT_1, named=named)
    (row,) = await desk.rows("select * from afterturn.memories where record_id = 'w'")
    assert row["session"] == "s-t2"
    assert row["metadata"] == {"session": "s-t2", "kept": "mine"}


# -- what was learned elsewhere and kept


@pytest.mark.parametrize("forgotten", [CHAT_1, ALICE])
async def test_what_is_kept_names_neither_the_erased_scope_nor_its_turn(
    desk: Desk, forgotten: MemoryScope
) -> None:
    """It stands in its own scope, says no source, and its readers read it anew."""
    acme = ALICE.ancestor(1)
    await desk.record(await desk.stage(CHAT_1, "t1", session="a"))
    claimed = await desk.claim_extract(CHAT_1, "t1")
    promoted = fact(acme, "f", "promoted", [source(CHAT_1, "t1")])
    noted = {"session": "a", "kind": "habit"}
    await desk.extract(claimed, promoted.model_copy(update={"metadata": noted}))
    before = await desk.value("select content from afterturn.memories where record_id = 'f'")
    await desk.forget(forgotten, derived="keep")
    (row,) = await desk.rows(
        "select path, turn_path, turn_id, session, content, metadata from afterturn.memories"
    )
    assert row["content"] > before
    assert (row["path"], row["turn_path"]) == (acme.stored_path, acme.stored_path)
    assert (row["turn_id"], row["session"]) == (None, None)
    assert row["metadata"] == {"kind": "habit"}
    (told,) = await desk.rows("select afterturn.record_sources($1, 'f', false)", acme.stored_path)
    assert told == {"record_sources": []}
    links = await desk.rows("select * from afterturn.memory_sources")
    assert links
    assert "alice" not in repr(links)
    assert "chat" not in repr(links)
    assert "t1" not in {row["turn_id"] for row in links}
    # Kept is not advanced: turns that had begun there go on.
    assert await desk.token(acme) == ()


@pytest.mark.parametrize("kept_by", [CHAT_1, ALICE])
@pytest.mark.parametrize("erased_by", [CHAT_1, ALICE])
async def test_what_was_kept_is_found_by_a_later_erase_of_any_scope_it_came_from(
    desk: Desk, kept_by: MemoryScope, erased_by: MemoryScope
) -> None:
    """Whoever names a scope that covered the turn reaches it; a neighbour's erase does not."""
    acme = ALICE.ancestor(1)
    await learn(desk, CHAT_1, "t1", fact(acme, "f", "promoted", [source(CHAT_1, "t1")]))
    await desk.forget(kept_by, derived="keep")
    await desk.forget(CHAT_2)
    await desk.forget(MemoryScope.of("acme", "bob"))
    await desk.forget(CHAT_1, derived="keep")
    assert await desk.texts() == [(acme.stored_path, "promoted")]
    job_id = await desk.enqueue_forget(erased_by)
    await desk.run(job_id)
    assert await desk.value(LEFT_OF_TEXT) == 0
    assert await desk.value("select counts from afterturn.jobs where id = $1", job_id) == {
        "derived": 1
    }
    # Its readers' turns could have read it: they are stale.
    assert [path for path, _ in await desk.token(acme)] == [acme.path]


@pytest.mark.parametrize("later", [{"session": "a"}, {"turn_ids": ["t1"]}])
async def test_what_a_named_erase_kept_is_found_by_its_session_and_by_its_turn(
    desk: Desk, later: dict[str, object]
) -> None:
    """Although the turn's row, which knew the session, is gone; another session's stays."""
    for turn_id, session in (("t1", "a"), ("t2", "b")):
        await desk.record(await desk.stage(CHAT_1, turn_id, session=session))
        claimed = await desk.claim_extract(CHAT_1, turn_id)
        promoted = fact(ALICE, f"f-{turn_id}", f"of {session}", [source(CHAT_1, turn_id)])
        await desk.extract(claimed, promoted)
    empty: dict[str, object] = {"record_ids": [], "turn_ids": []}
    for session in ("a", "b"):
        await desk.forget(CHAT_1, derived="keep", named=empty | {"session": session})
    assert [text for _, text in await desk.texts()] == ["of a", "of b"]
    await desk.forget(CHAT_1, named=empty | later)
    assert [text for _, text in await desk.texts()] == ["of b"]
    await desk.forget(CHAT_1)
    assert await desk.value(LEFT_OF_TEXT) == 0


@pytest.mark.parametrize("chunk_rows", [1, 2_000])
async def test_what_a_scopes_erase_kept_is_found_by_its_session(
    desk: Desk, chunk_rows: int
) -> None:
    """Learned from two of its turns; no chunk loses which session they were of."""
    desk.lifecycle._settings = desk.settings.model_copy(update={"chunk_rows": chunk_rows})
    for turn_id in ("t1", "t2"):
        await desk.record(await desk.stage(CHAT_1, turn_id, session="a"))
    claimed = await desk.claim_extract(CHAT_1, "t2")
    both = [source(CHAT_1, "t1"), source(CHAT_1, "t2")]
    await desk.extract(claimed, fact(ALICE, "f", "of both", both))
    await desk.forget(CHAT_1, derived="keep")
    assert await desk.texts() == [(ALICE.stored_path, "of both")]
    await desk.forget(CHAT_1, named={"record_ids": [], "turn_ids": [], "session": "a"})
    assert await desk.value(LEFT_OF_TEXT) == 0


async def test_what_was_kept_stands_on_when_its_other_source_is_erased(desk: Desk) -> None:
    """Keeping was asked for; only the erase of what was kept takes it."""
    both = [source(CHAT_1, "t1"), source(CHAT_2, "t2")]
    await learn(desk, CHAT_1, "t1")
    await learn(desk, CHAT_2, "t2", fact(ALICE, "f", "shared", both))
    await desk.forget(CHAT_1, derived="keep")
    (row,) = await desk.rows(
        "select turn_path, turn_id from afterturn.memories where path = $1", ALICE.stored_path
    )
    assert row == {"turn_path": CHAT_2.stored_path, "turn_id": "t2"}
    await desk.forget(CHAT_2)
    assert (ALICE.stored_path, "shared") in await desk.texts()
    await desk.forget(CHAT_1)
    assert await desk.value(LEFT_OF_TEXT) == 0


async def test_what_was_kept_and_is_learned_anew_rests_on_what_it_was_learned_from(
    desk: Desk,
) -> None:
    """A later turn replaces the text and with it where it came from."""
    await learn(desk, CHAT_1, "t1", fact(ALICE, "f", "old", [source(CHAT_1, "t1")]))
    await desk.forget(CHAT_1, derived="keep")
    await learn(desk, CHAT_2, "t2", fact(ALICE, "f", "new", [source(CHAT_2, "t2")]))
    await desk.forget(CHAT_1)
    assert (ALICE.stored_path, "new") in await desk.texts()
    await desk.forget(CHAT_2)
    assert await desk.value(LEFT_OF_TEXT) == 0


async def test_what_waits_for_a_flush_is_kept_alike(desk: Desk) -> None:
    """A pending record that names a source keeps its link through the flush."""
    await learn(desk, CHAT_1, "t1")
    writing = PostgresWriting(desk.database, desk.settings)
    written = fact(ALICE, "w", "written", [source(CHAT_1, "t1")])
    await writing.write(WriteRequest(scope=ALICE, records=(written,)))
    await desk.forget(CHAT_1, derived="keep")
    await desk.flush(ALICE)
    assert (ALICE.stored_path, "written") in await desk.texts()
    await desk.forget(CHAT_1)
    assert await desk.value(LEFT_OF_TEXT) == 0


async def test_the_receipt_counts_what_went_per_table(desk: Desk) -> None:
    """In chunks or not, each row once; and what a flush behind it covers is not counted."""
    for chunk_rows, scope in ((1, CHAT_1), (2_000, CHAT_2)):
        desk.lifecycle._settings = desk.settings.model_copy(update={"chunk_rows": chunk_rows})
        for turn_id in ("t1", "t2"):
            own = fact(scope, f"own-{turn_id}", f"own {turn_id}", [source(scope, turn_id)])
            up_id = f"up-{scope.path[-1]}-{turn_id}"
            up = fact(ALICE, up_id, f"{up_id} says", [source(scope, turn_id)])
            await learn(desk, scope, turn_id, own, up)
        await desk.stage(scope, "t3")
        job_id = await desk.enqueue_forget(scope)
        await desk.run(job_id)
        counts = await desk.value("select counts from afterturn.jobs where id = $1", job_id)
        assert counts == {
            "turns": 3,
            "memories": 10,
            "memory_sources": 2,
            "jobs": 2,  # t3's recording, and the scope's embedding
            "derived": 2,
        }


async def test_an_erase_goes_on_where_a_lost_worker_left_it(desk: Desk) -> None:
    """What was deleted in chunks stays deleted and counted; nothing is readable in between."""
    for turn_id in ("t1", "t2", "t3"):
        await learn(desk, CHAT_1, turn_id)
    job_id = await desk.enqueue_forget(CHAT_1)
    lost = await desk.claim_job(job_id)
    assert lost is not None
    chunk = "select rows from afterturn.forget_turns($1, $2, $3, 2, '30s', '', '')"
    assert await desk.value(chunk, job_id, lost.lease.token, CHAT_1.stored_path) == 2
    counts = "select counts from afterturn.jobs where id = $1"
    assert await desk.value(counts, job_id) == {"turns": 2}
    with pytest.raises(ErasePending):
        await desk.token(CHAT_1)
    await desk.expire_lease(job_id)
    assert await desk.run(job_id) == "forgot 1"
    assert await desk.value(LEFT) == 0
    told = await desk.value(counts, job_id)
    assert (told["turns"], told["memories"]) == (3, 12)


@pytest.mark.parametrize("layer", ["working", "episodic"])
@pytest.mark.parametrize("is_claimed", [False, True])
async def test_a_message_that_is_named_before_it_is_recorded_is_never_recorded(
    desk: Desk, layer: str, is_claimed: bool
) -> None:
    """Its record's id is known from the turn's; the other side is recorded all the same."""
    staged = await desk.stage(CHAT_1, "t1", query="secret", answer="fine")
    claimed = await desk.claim("record", staged.record_job) if is_claimed else None
    await desk.forget(CHAT_1, named={"record_ids": [f"t1:user:{layer}"], "turn_ids": []})
    if claimed is not None:
        tally = Tally()
        await desk.recorder.record([claimed], tally)
        assert str(tally) == "refused: lease lost"
    assert await desk.record(staged) == "recorded 1"
    assert [text for _, text in await desk.texts()] == ["fine", "fine"]
    rows = await desk.rows("select query, answer from afterturn.turns")
    assert rows == [{"query": None, "answer": "fine"}]


@pytest.mark.parametrize("derived", ["erase", "keep"])
@pytest.mark.parametrize("side", ["user", "assistant"])
async def test_what_was_learned_from_a_named_message_goes_and_the_other_is_read_again(
    desk: Desk, derived: Derived, side: str
) -> None:
    """Nobody knows which of the two a fact was learned from; another turn may hold it up."""
    await desk.record(await desk.stage(CHAT_1, "t1", query="secret", answer="fine"))
    await desk.record(await desk.stage(CHAT_1, "t2", query="another", answer=None))
    own, up = fact(CHAT_1, "own", "own fact"), fact(ALICE, "up", "promoted fact")
    both = fact(CHAT_1, "both", "said twice")
    for turn_id, facts in (("t1", [own, up, both]), ("t2", [both])):
        sources = (source(CHAT_1, turn_id),)
        told = [each.model_copy(update={"sources": sources}) for each in facts]
        await desk.extract(await desk.claim_extract(CHAT_1, turn_id), *told)
    named = {"record_ids": [f"t1:{side}:episodic"], "turn_ids": []}
    await desk.forget(CHAT_1, derived=derived, named=named)
    learned = [text for _, text in await desk.texts() if text in {own.text, up.text, both.text}]
    assert learned == ["promoted fact", "said twice"][derived == "erase" :]
    again = await desk.claim_extract(CHAT_1, "t1")
    assert (again.query, again.answer) == ((None, "fine") if side == "user" else ("secret", None))
    assert await desk.extract(again) == "extracted 1"
    rows = await desk.rows("select turn_id, outcome, extracted from afterturn.turns order by 1")
    assert [tuple(row.values()) for row in rows] == [("t1", "done", 0), ("t2", "done", 1)]


@pytest.mark.parametrize("derived", ["erase", "keep"])
async def test_what_was_learned_in_very_many_scopes_goes_in_one_transaction(
    desk: Desk, derived: Derived
) -> None:
    """Their locks are not taken one by one: the server's table of locks is not endless."""
    await learn(desk, CHAT_1, "t1")
    writing = PostgresWriting(desk.database, desk.settings)
    scopes = [MemoryScope.of("globex", f"user-{n}", "chat") for n in range(150)]
    for scope in scopes:
        written = fact(scope, "w", "written", [source(CHAT_1, "t1")])
        await writing.write(WriteRequest(scope=scope, records=(written,)))
    job = await desk.claim_job(await desk.enqueue_forget(CHAT_1, derived=derived))
    assert job is not None
    async with desk.database.connection() as conn, conn.transaction():
        verdict = await conn.fetchval(
            "select verdict from afterturn.forget_final($1, $2, $3, '30s')",
            job.lease.job_id, job.lease.token, CHAT_1.stored_path,
        )  # fmt: skip
        assert verdict == "done"
        locks = "select count(*) from pg_locks where locktype = 'advisory' and pid = $1"
        assert await conn.fetchval(locks, conn.get_server_pid()) < 20
    left = await desk.texts(pending=True)
    assert len(left) == (0 if derived == "erase" else 150)
    assert "chat-1" not in repr(await desk.rows("select * from afterturn.memory_sources"))
    begun = await desk.token(scopes[7])
    assert [path for path, _ in begun] == ([scopes[7].path] if derived == "erase" else [])


async def test_an_erase_knows_whether_others_are_at_work(desk: Desk, database_url: str) -> None:
    """Beside nobody it does not pause between its parts; another session at work is noticed."""
    lately = "select afterturn.others_worked(interval '0')"
    async with desk.database.connection() as ours:
        assert not await ours.fetchval(lately)
        other = await asyncpg.connect(database_url)
        try:
            assert not await ours.fetchval(lately)
            assert await ours.fetchval("select afterturn.others_worked(interval '1 hour')")
            lock = "select pg_advisory_lock(1)"
            await ours.execute(lock)
            waiting = asyncio.create_task(other.execute(lock))
            while not await ours.fetchval(lately):
                await asyncio.sleep(0)
            await ours.execute("select pg_advisory_unlock(1)")
            await waiting
        finally:
            await other.close()
