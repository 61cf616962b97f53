"""The default embedder: offline, lazily loaded, the same from every thread and process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afterturn.embedding.checked import CheckedEmbedder
from afterturn.embedding.wordllama import DIM, PIECE_CHARACTERS, WordLlamaEmbedder
from afterturn.ports import EmbeddingProvider

from .two_models import Letters

EMBEDDER: EmbeddingProvider = WordLlamaEmbedder()
TEXTS = [
    "Nora moved to Lisbon.",
    "She loves pastéis de nata, and hates running",
    "北京很大",
    "😀😀",
    "x",
    "a b  c\n\nd\te",
    " leading and trailing ",
    "<s> </s> <unk>",
]


def python(source: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """What a fresh process does with the source."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_vectors_are_float32_of_unit_length() -> None:
    """[n, 256], one row a text, in order."""
    rows = EMBEDDER.embed(TEXTS)
    assert rows.shape == (len(TEXTS), DIM)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)
    for row, text in zip(rows, TEXTS, strict=True):
        np.testing.assert_array_equal(EMBEDDER.embed([text])[0], row)


def test_no_texts_give_no_rows() -> None:
    """The shape is right even then."""
    assert EMBEDDER.embed([]).shape == (0, DIM)


@pytest.mark.parametrize("blank", ["", " ", "\n\t ", "\u00a0\u2003"])
def test_a_blank_text_has_a_zero_row(blank: str) -> None:
    """It is like nothing, and does not disturb its neighbours."""
    rows = EMBEDDER.embed(["Lisbon", blank, "Lisbon"])
    assert not rows[1].any()
    np.testing.assert_array_equal(rows[0], rows[2])


def test_they_are_wordllamas_own_vectors() -> None:
    """Pooling here gives what the library's own gives."""
    from wordllama import WordLlama

    package = find_spec("wordllama")
    assert package is not None
    assert package.origin is not None
    theirs = WordLlama.load(cache_dir=Path(package.origin).parent, disable_download=True)
    texts = [*TEXTS, " ".join(TEXTS) * 20]
    np.testing.assert_allclose(
        EMBEDDER.embed(texts), theirs.embed(texts, norm=True), rtol=0, atol=1e-5
    )


def test_similar_texts_are_near() -> None:
    """A meaning is nearer to its paraphrase than to another one."""
    cat, kitten, tax = EMBEDDER.embed(
        ["My cat sleeps all day", "The kitten is always napping", "Tax returns are due in April"]
    )
    assert cat @ kitten > cat @ tax + 0.1


def test_a_long_text_is_embedded_whole() -> None:
    """What stands after the first piece counts, and cutting at spaces changes next to nothing."""
    from afterturn.embedding import wordllama

    head = "the cat sleeps on the sofa " * (PIECE_CHARACTERS // 20)
    tail = "tax returns are due in April " * (PIECE_CHARACTERS // 10)
    rows = EMBEDDER.embed([head, head + tail])
    assert rows[0] @ rows[1] < 0.9
    model = wordllama._once.model()
    ids = model.tokenizer.encode(head + tail, add_special_tokens=False).ids
    whole = model.vectors[ids].sum(axis=0)
    assert rows[1] @ (whole / np.linalg.norm(whole)) > 0.9999


@pytest.mark.parametrize("unit", ["a", "a ", "😀", "QUJD", "\n"])
def test_a_megabyte_is_embedded(unit: str) -> None:
    """One large text costs memory for one piece of it, and its neighbours cost nothing more."""
    text = "x" + unit * (1_000_000 // len(unit.encode()))
    rows = EMBEDDER.embed([text, *TEXTS])
    assert np.isfinite(rows).all()
    np.testing.assert_array_equal(rows[1:], EMBEDDER.embed(TEXTS))


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=8))
@settings(deadline=None)
def test_any_text_has_a_finite_row(texts: list[str]) -> None:
    """Whatever the characters, each row is of unit length or zero."""
    rows = EMBEDDER.embed(texts)
    lengths = np.linalg.norm(rows, axis=1)
    assert rows.shape == (len(texts), DIM)
    assert all(abs(length - 1) < 1e-4 or length == 0 for length in lengths)
    for text, length in zip(texts, lengths, strict=True):
        assert length > 0 or not text.strip()


def test_threads_share_it() -> None:
    """Eight threads at once, the first of them loading it, get what one alone gets."""
    source = """
import threading
from concurrent.futures import ThreadPoolExecutor
from afterturn.embedding import wordllama

loads = []
load = wordllama._load
wordllama._load = lambda: (loads.append(1), load())[1]
start = threading.Barrier(8)
texts = [f"text number {n} about {'cats' * (n % 7)}" for n in range(200)]

def work(_):
    start.wait()
    return wordllama.WordLlamaEmbedder().embed(texts).tobytes()

with ThreadPoolExecutor(8) as pool:
    rows = set(pool.map(work, range(8)))
assert len(rows) == 1, len(rows)
assert loads == [1], loads
"""
    python(source)


def test_many_threads_give_the_same_rows() -> None:
    """The tokenizer holds no state of a call."""
    texts = [f"{TEXTS[n % len(TEXTS)]} {n}" for n in range(400)]
    alone = EMBEDDER.embed(texts)
    start = threading.Barrier(4)

    def work(offset: int) -> bool:
        start.wait()
        mixed = texts[offset:] + texts[:offset]
        return np.array_equal(EMBEDDER.embed(mixed), np.roll(alone, -offset, axis=0))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, [0, 100, 200, 300]))


FORK = """
import os, sys, threading, warnings
warnings.simplefilter("ignore")  # newer Pythons warn of any fork beside threads
from afterturn.embedding import wordllama

def child():
    import signal
    signal.alarm(60)
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        os._exit(0 if wordllama.WordLlamaEmbedder().embed(["Lisbon"]).any() else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


@pytest.mark.parametrize("parallelism", ["", "true", "false"])
def test_it_works_on_both_sides_of_a_fork(parallelism: str) -> None:
    """A child of a process that has embedded embeds, without a warning of the tokenizer."""
    source = f"""{FORK}
before = wordllama.WordLlamaEmbedder().embed(["Lisbon", "Rome"] * 100)
child()
assert (wordllama.WordLlamaEmbedder().embed(["Lisbon", "Rome"] * 100) == before).all()
"""
    environ = {"TOKENIZERS_PARALLELISM": parallelism} if parallelism else {}
    assert python(source, **environ).stderr == ""


def test_a_fork_while_another_thread_loads_it() -> None:
    """The child does not wait for a thread that it does not have."""
    source = f"""{FORK}
loading, go_on = threading.Event(), threading.Event()
load = wordllama._load

def slow():
    if threading.current_thread() is not threading.main_thread():
        loading.set()
        go_on.wait()
    return load()

wordllama._load = slow
thread = threading.Thread(target=wordllama.WordLlamaEmbedder().embed, args=(["x"],))
thread.start()
loading.wait()
child()
go_on.set()
thread.join()
"""
    assert python(source).stderr == ""


# Refuses what a download begins with.
OFFLINE = """
import sys

def refuse(event, arguments):
    if event in {"socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"}:
        refused.append(event)
        raise OSError(event)

refused = []
sys.addaudithook(refuse)
"""


def test_it_touches_no_network_and_no_home(tmp_path: Path) -> None:
    """It loads from its wheel where no name resolves and no socket connects, and writes nothing."""
    source = f"""{OFFLINE}
from afterturn.embedding.wordllama import WordLlamaEmbedder
assert WordLlamaEmbedder().embed(["Lisbon"]).any()
assert refused == [], refused

import socket
try:
    socket.create_connection(("localhost", 9))
except OSError:
    assert refused == ["socket.getaddrinfo"], refused
else:
    raise AssertionError("the guard does not guard")
"""
    python(source, HOME=str(tmp_path), HF_HOME=str(tmp_path / "hf"))
    assert list(tmp_path.iterdir()) == []


def test_importing_afterturn_loads_nothing_of_it() -> None:
    """The model, its tokenizer and its library come with the first text, not before."""
    source = """
import sys
import afterturn
from afterturn.embedding.compose import compose_embedder
from afterturn.settings import Settings

embedder = compose_embedder(Settings())
assert (embedder.model_id, embedder.dim) == ("wordllama:l2_supercat:256", 256)
assert embedder.embed([]).shape == embedder.embed([" "])[1:].shape == (0, 256)
heavy = {"wordllama", "tokenizers", "safetensors", "requests"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
embedder.embed(["x"])
assert "wordllama" in sys.modules
"""
    python(source)


def test_logging_stays_the_applications() -> None:
    """wordllama configures the root logger when imported; that is undone."""
    source = """
import logging
from afterturn.embedding.wordllama import WordLlamaEmbedder

WordLlamaEmbedder().embed(["x"])
assert logging.getLogger().handlers == []
assert logging.getLogger().level == logging.WARNING
logging.basicConfig(level=logging.ERROR)
assert len(logging.getLogger().handlers) == 1
"""
    assert python(source).stderr == ""


def test_without_its_files_it_says_what_to_do(tmp_path: Path) -> None:
    """A wordllama without a model is a mistake of the installation, not a reason to download."""
    source = f"""{OFFLINE}
import shutil
from importlib.util import find_spec
from pathlib import Path
package = Path(find_spec("wordllama").origin).parent
shutil.copytree(package, {str(tmp_path / "wordllama")!r})
for file in Path({str(tmp_path)!r}).rglob("*.safetensors"):
    file.unlink()
sys.path.insert(0, {str(tmp_path)!r})

from afterturn.embedding.checked import CheckedEmbedder
from afterturn.embedding.wordllama import WordLlamaEmbedder
from afterturn.errors import ConfigurationError
for embedder in (WordLlamaEmbedder(), CheckedEmbedder(WordLlamaEmbedder())):
    try:
        embedder.embed(["x"])
    except ConfigurationError as error:
        assert "carries no model" in error.message and "AFTERTURN_EMBEDDER" in error.hint
    else:
        raise AssertionError
assert refused == [], refused
"""
    python(source)


def test_without_wordllama_it_says_what_to_do() -> None:
    """The remedy is named where the package is missing."""
    source = """
import sys
sys.modules["wordllama"] = None
from afterturn.embedding import wordllama
from afterturn.errors import ConfigurationError
wordllama.find_spec = lambda name: None
try:
    wordllama.WordLlamaEmbedder().embed(["x"])
except ConfigurationError as error:
    assert "not installed" in error.message and "AFTERTURN_EMBEDDER=none" in error.hint
else:
    raise AssertionError
"""
    python(source)


def test_it_is_a_provider() -> None:
    """It fulfils the port, and its answers pass the check unchanged."""
    checked = CheckedEmbedder(EMBEDDER)
    assert isinstance(EMBEDDER, EmbeddingProvider)
    assert isinstance(checked, EmbeddingProvider)
    np.testing.assert_array_equal(checked.embed(TEXTS), EMBEDDER.embed(TEXTS))


def test_it_is_instant_once_it_is_loaded() -> None:
    """So that a question is embedded without another thread, and no loop waits for the model."""
    embedder = WordLlamaEmbedder()
    embedder.embed(["tea"])
    assert embedder.is_instant
    assert CheckedEmbedder(embedder).is_instant
    assert not CheckedEmbedder(Letters(2)).is_instant
