"""What was seen and told on the way, and the notes themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torture_checks.paper import CHAT, TRAP, Paper
from tests.torturing import words
from tests.torturing.faults import DECKS, schedule
from tests.torturing.history import History, Tally, read_histories
from tests.torturing.judging import check_looks, judge
from tests.torturing.story import tell


@pytest.fixture
def paper() -> Paper:
    """An empty run."""
    return Paper()


class TestLooks:
    """Reads while things go on."""

    def codes(self, paper: Paper) -> set[str]:
        """What the reads alone show."""
        story = tell(paper.events)
        return {violation.code for violation in check_looks(story, judge(story))}

    def test_a_read_after_the_receipt_must_not_show_it(self, paper: Paper) -> None:
        """Erased is unreadable at once, whatever a reader had cached."""
        paper.turn("t1")
        paper.saw(["t1"])
        paper.forget("f1")
        assert self.codes(paper) == set()
        paper.saw(["t1"])
        assert self.codes(paper) == {"erased text read"}

    def test_a_read_after_the_acknowledged_request_must_not_show_it(self, paper: Paper) -> None:
        """From the request on nothing under the scope is read."""
        paper.turn("t1")
        paper.ask("f1")
        paper.saw(["t1"])
        assert self.codes(paper) == set()
        paper.note("requested", "f1", job=1)
        paper.saw(["t1"])
        assert self.codes(paper) == {"erased text read"}

    def test_a_siblings_memory_must_not_show(self, paper: Paper) -> None:
        """A reader sees its own scope and those above it."""
        paper.turn("t1", CHAT)
        paper.saw(["t1"], TRAP)
        assert self.codes(paper) == {"scope"}

    def test_what_was_published_must_show(self, paper: Paper) -> None:
        """Finish, flush, retrieve: a read of everything has it."""
        paper.turn("t1")
        paper.saw([], whole=True)
        paper.note("flush", "x1", scope=CHAT, of="t1")
        paper.note("flushed", "x1", of="t1", receipt=paper.paper_of("flush", CHAT))
        assert self.codes(paper) == set()
        paper.saw([], whole=True)
        assert self.codes(paper) == {"missed"}

    def test_what_was_flushed_and_erased_meanwhile_may_be_missing(self, paper: Paper) -> None:
        """A flush that gave way, or an erase that was asked for, excuses the absence."""
        paper.turn("t1")
        paper.note("flush", "x1", scope=CHAT, of="t1")
        paper.note("flushed", "x1", of="t1", receipt=paper.paper_of("flush", CHAT))
        paper.ask("f1")
        paper.saw([], whole=True)
        assert self.codes(paper) == set()

    def test_a_refused_turn_must_not_show(self, paper: Paper) -> None:
        """What was refused was never kept."""
        paper.ask("f1", TRAP)
        paper.begin("t1")
        paper.finish("t1", "refused", error="StaleTurn")
        paper.saw(["t1"])
        assert self.codes(paper) == {"refused text read"}

    def test_nobody_reads_what_nobody_said(self, paper: Paper) -> None:
        """A marker of another run, or a broken one."""
        paper.turn("t1")
        paper.saw(["t1"])
        paper.events[-1]["seen"] = {"v1/acme": [words.marker("q", "never")]}
        assert "alien" in self.codes(paper)


def test_a_stale_turn_must_not_be_acknowledged(paper: Paper) -> None:
    """Begun before an erase that covers it, finished after its receipt."""
    paper.begin("t1")
    paper.forget("f1", what="turns", turn_ids=["another"])
    paper.finish("t1")
    paper.hold("t1")
    assert paper.codes() == {"stale turn acknowledged"}


def test_an_acknowledged_turn_is_known(paper: Paper) -> None:
    """Handed over again after an erase of others it is the same turn, not a stale one."""
    paper.turn("t1")
    paper.hold("t1")
    paper.forget("f1", what="turns", turn_ids=["another"])
    assert paper.violations() == []
    paper.note("denied", "t1", error="StaleTurn")
    assert paper.codes() == {"known turn answered stale"}


def test_a_refusal_needs_an_erase(paper: Paper) -> None:
    """Stale without an erase that could explain it."""
    paper.forget("f1")
    paper.begin("t1")
    paper.finish("t1", "refused", error="StaleTurn")
    assert paper.codes() == {"refused without an erase"}


def test_overlapping_jobs_complete_in_order(paper: Paper) -> None:
    """Of two jobs whose scopes overlap the one with the smaller id completes first."""
    first = paper.paper_of("flush", CHAT, completed_at="2030-01-01T00:00:09.5Z")
    other = paper.paper_of("flush", TRAP, completed_at="2030-01-01T00:00:01Z")
    later = paper.paper_of("forget", CHAT[:2], completed_at="2030-01-01T00:00:09Z")
    for op, receipt in (("x1", first), ("x2", other), ("x3", later)):
        paper.note("flush", op, scope=CHAT, of="")
        paper.note("flushed", op, of="", receipt=receipt)
    found = [violation.detail for violation in paper.violations()]
    assert len(found) == 1
    assert "flush 1" in found[0]
    assert "forget 3" in found[0]


def test_an_error_that_quotes_memory_is_seen(paper: Paper) -> None:
    """Messages hold ids and values, never text."""
    paper.begin("t1")
    word = tell(paper.events).said["t1"].markers["q"]
    paper.finish("t1", "unknown", error=f"could not keep {word}")
    assert paper.codes() == {"text in an error"}


def test_a_foreign_error_is_seen(paper: Paper) -> None:
    """Whatever is no error of afterturn's is a finding."""
    paper.begin("t1")
    paper.finish("t1", "crash", error="KeyError: 'x'")
    assert paper.codes() == {"crash"}


def test_notes_outlive_a_kill(tmp_path: Path) -> None:
    """A line that was cut off is left out; all before it are read, in order."""
    history = History(tmp_path, "talker-0-0")
    first = history.note("begin", op=history.new_op(), text="über 🐈")
    history.note("began", op="talker-0-0.1")
    with (tmp_path / "talker-0-0.jsonl").open("ab") as file:
        file.write(b'{"e": "acked", "t"')
    found = list(read_histories(tmp_path))
    assert [event["e"] for event in found] == ["begin", "began"]
    assert found[0]["t"] == first
    assert found[0]["text"] == "über 🐈"
    assert Tally(tmp_path).update() == {"begin": 1, "began": 1}


@pytest.mark.parametrize("deck", [deck for deck in DECKS if deck != "none"])
def test_the_seed_fixes_the_faults(deck: str) -> None:
    """The same seed gives the same schedule, another one another, each with every fault."""
    assert schedule(7, 300, deck) == schedule(7, 300, deck)
    assert schedule(7, 300, deck) != schedule(8, 300, deck)
    faults = schedule(7, 300, deck)
    assert {fault.what for fault in faults} == set(DECKS[deck])
    assert all(0 < fault.at < 300 for fault in faults)


def test_no_faults_are_none() -> None:
    """`--faults none` leaves everything alone."""
    assert schedule(1, 60, "none") == []


def test_markers_are_found_wherever_they_are() -> None:
    """In text, in bytes, at the beginning of a sentence; and nothing else is one."""
    said = {side: words.marker(side, 1, "op") for side in "qafr"}
    assert len(set(said.values())) == 4
    text = " ".join(f"({word})," for word in said.values())
    assert words.markers_in(text) == set(said.values())
    assert words.markers_in_bytes(b"\x00\xff" + text.encode()) == set(said.values())
    assert words.markers_in("The quick brown fox and xkq") == set()
