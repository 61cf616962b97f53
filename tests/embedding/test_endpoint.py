"""`openai:MODEL` against a server on this machine that speaks the protocol."""

from __future__ import annotations

import base64
import json
import logging
import traceback
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from afterturn import Memory, MemoryQuery, MemoryScope
from afterturn.embedding.compose import compose_embedder
from afterturn.embedding.endpoint import REQUEST_TEXTS, TEXT_CHARACTERS_MAX
from afterturn.errors import ConfigurationError, MemoryUnavailable
from afterturn.ports import EmbeddingProvider
from afterturn.settings import Settings
from afterturn.testing.model_server import Asked, ModelServer, Reply

SECRET = "zaffre"


def vectors(asked: Asked) -> Reply:
    """Counts of a, b and c, last text first, in the coding that the client asks for."""
    rows = [[text.count(letter) + 0.5 for letter in "abc"] for text in asked.body["input"]]
    data = []
    for index, row in reversed(list(enumerate(rows))):
        coded: object = row
        if asked.body.get("encoding_format") == "base64":
            coded = base64.b64encode(np.asarray(row, dtype="<f4").tobytes()).decode()
        data.append({"object": "embedding", "index": index, "embedding": coded})
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    answer = {"object": "list", "model": "letters", "data": data, "usage": usage}
    return Reply(raw=json.dumps(answer).encode())


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(vectors) as running:
        yield running


def composed(server: ModelServer, **more: object) -> EmbeddingProvider:
    settings = Settings.model_validate(
        {
            "embedder": "openai:letters",
            "embedder_base_url": server.url,
            "embedder_dim": 3,
            "embedder_timeout_seconds": 5.0,
            **more,
        }
    )
    embedder = compose_embedder(settings)
    assert embedder is not None
    return embedder


def test_each_text_gets_its_own_vector(server: ModelServer) -> None:
    """In the order of the texts, whatever the order of the answer, at unit length."""
    embedder = composed(server)
    found = embedder.embed(["aaa", "b", "cc"])
    assert found.argmax(axis=1).tolist() == [0, 1, 2]
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, rtol=1e-5)
    assert (embedder.model_id, embedder.dim) == ("openai:letters", 3)
    assert "dimensions" not in server.asked[0].body


def test_many_texts_go_in_several_requests_and_long_ones_are_cut(server: ModelServer) -> None:
    """An endpoint refuses what is too much at once."""
    composed(server).embed(["a" * 20_000] * (REQUEST_TEXTS + 1))
    assert sum(len(asked.body["input"]) for asked in server.asked) == REQUEST_TEXTS + 1
    assert len(server.asked) > 1
    longest = max(len(text) for asked in server.asked for text in asked.body["input"])
    assert longest == TEXT_CHARACTERS_MAX


def test_no_text_is_logged(server: ModelServer, caplog: pytest.LogCaptureFixture) -> None:
    """Not by the client either, where everything is logged."""
    caplog.set_level(logging.DEBUG)
    composed(server).embed([SECRET])
    assert SECRET in server.asked[0].body["input"]
    assert SECRET not in caplog.text


def test_a_known_model_can_be_shortened(server: ModelServer) -> None:
    """Only where its length is another than the model's own is one asked for."""
    composed(server, embedder="openai:text-embedding-3-small").embed(["a"])
    assert server.asked[0].body["dimensions"] == 3


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Reply(SECRET, status=401), ConfigurationError),
        (Reply(SECRET, status=404), ConfigurationError),
        (Reply(SECRET, status=400), MemoryUnavailable),
        (Reply(SECRET, status=500), MemoryUnavailable),
        (Reply(raw=b"not json " + SECRET.encode()), MemoryUnavailable),
        (Reply(raw=b'{"data": []}'), MemoryUnavailable),
    ],
)
def test_a_failing_endpoint_is_an_error_without_any_text(
    server: ModelServer, reply: Reply, error: type[Exception]
) -> None:
    """Neither what was asked nor what the endpoint says stands in the error or behind it."""
    server.script = lambda _: reply
    with pytest.raises(error) as caught:
        composed(server).embed([f"a {SECRET}"])
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_an_endpoint_that_hangs_or_is_gone(server: ModelServer) -> None:
    """The call ends at its timeout; a closed port is found at once."""
    server.script = lambda _: Reply(hangs=True)
    with pytest.raises(MemoryUnavailable, match=r"0\.2 s"):
        composed(server, embedder_timeout_seconds=0.2).embed(["a"])
    with pytest.raises(MemoryUnavailable, match="cannot be reached"):
        composed(server, embedder_base_url="http://127.0.0.1:1/v1").embed(["a"])


def test_an_unknown_length_is_asked_for() -> None:
    """It is stored with the vectors, so it must be known before the first one."""
    with pytest.raises(ConfigurationError) as caught:
        compose_embedder(Settings(embedder="openai:letters"))
    assert "AFTERTURN_EMBEDDER_DIM" in caught.value.hint
    known = compose_embedder(Settings(embedder="openai:text-embedding-3-large"))
    assert known is not None
    assert known.dim == 3072


async def test_retrieval_goes_on_while_the_endpoint_is_down(
    server: ModelServer, settings: Settings
) -> None:
    """The answer comes by words, is never bare empty, and says what is missing."""
    scope = MemoryScope.of("acme", "alice")
    async with Memory(settings, embedder=composed(server)) as memory:
        await memory.remember(scope, "a cab")
        await memory.drain(scope, in_process=True)
        whole = await memory.retrieve(MemoryQuery(scope=scope, text="cab"))
        server.script = lambda _: Reply(status=500)
        partly = await memory.retrieve(MemoryQuery(scope=scope, text="cab"))
    assert not whole.degraded
    assert [found.record.text for found in partly.memories] == ["a cab"]
    assert partly.degraded


@pytest.mark.parametrize(
    "broken",
    [
        lambda texts: np.full((len(texts), 3), np.nan, dtype=np.float32),
        lambda texts: np.ones((len(texts), 7), dtype=np.float32),
        lambda texts: "vectors",
    ],
)
async def test_an_embedder_given_to_memory_is_checked(
    settings: Settings, broken: Callable[[list[str]], object]
) -> None:
    """NaN, a wrong length or no array at all neither reach the database nor empty an answer."""

    class Broken:
        model_id = "broken"
        dim = 3

        def embed(self, texts: list[str]) -> object:
            return broken(texts)

    scope = MemoryScope.of("acme", "alice")
    given: EmbeddingProvider = Broken()  # type: ignore[assignment] # as a user may get it wrong
    patient = settings.model_copy(update={"max_attempts": 1})
    async with Memory(patient, embedder=given) as memory:
        await memory.remember(scope, "a cab")
        await memory.drain(scope, in_process=True)
        found = await memory.retrieve(MemoryQuery(scope=scope, text="cab"))
    assert [each.record.text for each in found.memories] == ["a cab"]
    assert found.degraded[0].startswith("vectors: ")


def test_an_embedder_that_does_not_fit_is_refused_by_memory(settings: Settings) -> None:
    """When the parts are put together, not at the first text."""

    class Nameless:
        dim = 3

        def embed(self, texts: list[str]) -> object:
            raise AssertionError

    with pytest.raises(ConfigurationError, match="Nameless has no model_id"):
        Memory(settings, embedder=Nameless())  # type: ignore[arg-type] # as a user may get it wrong
