"""Changing the model under a database that is in use."""

from __future__ import annotations

import asyncio

import pytest

from afterturn import Memory, MemoryQuery, MemoryScope
from afterturn.database import Database
from afterturn.embedding.checked import CheckedEmbedder
from afterturn.embedding.compose import compose_embedder
from afterturn.errors import ConfigurationError, MemoryUnavailable
from afterturn.jobs.ledger import Ledger
from afterturn.jobs.rings import RingPublisher
from afterturn.pipeline.reembedding import Reembedded, reembed
from afterturn.pipeline.runner import Runner
from afterturn.retrieval.service import PostgresRetrieval
from afterturn.settings import Settings
from tests.cli.command import CommandLine

from . import two_models

ALICE = MemoryScope.of("acme", "alice")
BOB = MemoryScope.of("acme", "bob")
MODULE = "tests.embedding.two_models"
DIMS = "select distinct length(embedding) / 2 from afterturn.memories where not pending"


def using(settings: Settings, name: str) -> Settings:
    return settings.model_copy(update={"embedder": f"{MODULE}:{name}"})


@pytest.fixture
async def filled(settings: Settings, database: Database) -> Database:
    """Two scopes with a few records, embedded by the first model."""
    async with Memory(using(settings, "first")) as memory:
        for scope in (ALICE, BOB):
            for text in ("a cab", "bad bed", "abc"):
                await memory.remember(scope, text)
            await memory.drain(scope, in_process=True)
    assert [row[0] for row in await database.rows(DIMS)] == [3]
    return database


async def run(
    database: Database, settings: Settings, embedder: two_models.Letters
) -> tuple[Reembedded, list[tuple[int, int]]]:
    seen: list[tuple[int, int]] = []
    rings = RingPublisher("redis://127.0.0.1:1/0", settings)
    rings.close(0)
    checked = CheckedEmbedder(embedder)
    runner = Runner(database, settings, rings, None, checked)
    done = await reembed(database, runner, checked, lambda done, of: seen.append((done, of)))
    return done, seen


async def test_a_changed_model_is_refused_until_reembed(
    filled: Database, settings: Settings
) -> None:
    """The refusal names the command; after it the new model opens and every record has a vector."""
    with pytest.raises(ConfigurationError) as refused:
        await Memory(using(settings, "second")).open()
    assert refused.value.hint is not None
    assert "afterturn reembed" in refused.value.hint
    done, seen = await run(filled, settings, two_models.second())
    assert done == Reembedded("letters-5", "letters-3", 6, 6)
    assert seen[0] == (0, 6)
    assert seen[-1] == (6, 6)
    assert [row[0] for row in await filled.rows(DIMS)] == [5]
    async with Memory(using(settings, "second")) as memory:
        found = await memory.retrieve(MemoryQuery(scope=ALICE, text="cab"))
        assert len(found.memories) == 3
        assert not found.degraded
        assert "vector" in found.memories[0].signals
    with pytest.raises(ConfigurationError):
        await Memory(using(settings, "first")).open()


async def test_reading_goes_on_and_says_what_is_missing(
    filled: Database, settings: Settings
) -> None:
    """A reader of the old model and one of the new answer by words while vectors are made."""
    old = PostgresRetrieval(filled, settings, two_models.first())
    new = PostgresRetrieval(filled, settings, two_models.second())
    query = MemoryQuery(scope=ALICE, text="abc")
    assert not (await old.retrieve(query)).degraded
    two_models.Breaking.left = 1  # the probe alone
    with pytest.raises(MemoryUnavailable):
        await run(filled, settings.model_copy(update={"max_attempts": 1}), two_models.breaking())
    for reader in (old, new):
        found = await reader.retrieve(query)
        assert found.memories[0].record.text == "abc"
        assert found.degraded == ("vectors: 3 of 3 records have none of this embedder yet",)
    done, _ = await run(filled, settings, two_models.second())
    assert (done.replaced, done.removed, done.embedded) == ("letters-5", 0, 6)
    assert not (await new.retrieve(query)).degraded
    assert (await old.retrieve(query)).degraded


async def test_a_broken_reembed_goes_on_where_it_ended(
    filled: Database, settings: Settings
) -> None:
    """What was embedded before the break is not embedded again."""
    two_models.Breaking.left = 1 + 3  # the probe, and one of the two scopes
    with pytest.raises(MemoryUnavailable, match="could not be embedded"):
        await run(filled, settings.model_copy(update={"max_attempts": 1}), two_models.breaking())
    made = "select count(embedding) from afterturn.memories where not pending"
    assert await filled.value(made) == 3
    two_models.Breaking.left = 1 + 3
    done, seen = await run(filled, settings, two_models.breaking())
    assert (done.removed, done.embedded, seen[0]) == (0, 6, (3, 6))
    assert two_models.Breaking.left == 0


async def test_an_embedder_that_fails_at_once_changes_nothing(
    filled: Database, settings: Settings
) -> None:
    """It is tried before any vector goes."""
    two_models.Breaking.left = 0
    with pytest.raises(MemoryUnavailable):
        await run(filled, settings, two_models.breaking())
    assert [row[0] for row in await filled.rows(DIMS)] == [3]


async def test_work_of_the_old_model_under_way_is_refused(
    filled: Database, settings: Settings
) -> None:
    """A worker that claimed a job before cannot store a vector of the old model afterwards."""
    async with Memory(using(settings, "first")) as memory:
        await memory.remember(ALICE, "dada")
    ledger = Ledger(filled, settings)
    job = await ledger.claim_embed([])
    assert job is not None
    await run(filled, settings, two_models.second())
    row = await filled.row("select record_id, revision from afterturn.memories where text = 'dada'")
    verdict = await ledger.apply_embed(
        job, [row["record_id"]], [row["revision"]], [b"\0" * 6], last=True
    )
    assert verdict == "lost"
    assert [row[0] for row in await filled.rows(DIMS)] == [5]


async def test_records_written_without_an_embedder_get_vectors(
    database: Database, settings: Settings
) -> None:
    """From `none` to a model is a change of model, too."""
    async with Memory(settings) as memory:
        await memory.remember(ALICE, "abc")
    done, _ = await run(database, settings, two_models.first())
    assert done == Reembedded("letters-3", None, 0, 1)


def test_the_command(settings: Settings) -> None:
    """`afterturn reembed` reports in JSON and in words, and refuses `none`."""

    async def remember() -> None:
        async with Memory(using(settings, "first")) as memory:
            await memory.remember(ALICE, "abc")
            await memory.drain(ALICE, in_process=True)

    asyncio.run(remember())
    commands = CommandLine(
        {
            "AFTERTURN_HOME": str(settings.home),
            "AFTERTURN_DATABASE_URL": str(settings.database_url),
            "AFTERTURN_BROKER_URL": str(settings.broker_url),
        }
    )
    done = commands.run("reembed", "--json", embedder=f"{MODULE}:second")
    assert done.code == 0
    assert done.json == {
        "model": "letters-5",
        "replaced": "letters-3",
        "removed": 1,
        "embedded": 1,
    }
    again = commands.run("reembed", embedder=f"{MODULE}:second")
    assert "letters-5" in again.stdout
    refused = commands.run("reembed", embedder="none")
    assert refused.code == 1
    assert "AFTERTURN_EMBEDDER" in refused.error


def test_compose_gives_what_the_tests_name(settings: Settings) -> None:
    """The factories are found by `module:factory`."""
    embedder = compose_embedder(using(settings, "second"))
    assert embedder is not None
    assert (embedder.model_id, embedder.dim) == ("letters-5", 5)
