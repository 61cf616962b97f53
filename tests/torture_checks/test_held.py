"""What must be there once, what must be nowhere, and what may be either."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.torture_checks.paper import CHAT, TRAP, Paper
from tests.torturing.story import stored, tell

USER = CHAT[:2]


@pytest.fixture
def paper() -> Paper:
    """An empty run."""
    return Paper()


def test_an_acknowledged_turn_that_is_there_once_is_in_order(paper: Paper) -> None:
    """Nothing is found wrong with a turn that is held as it was said."""
    paper.turn("t1")
    paper.hold("t1")
    assert paper.violations() == []


def test_an_acknowledged_turn_that_is_missing_is_lost(paper: Paper) -> None:
    """No erase touched it, so its absence is a loss."""
    paper.turn("t1")
    assert paper.codes() == {"lost"}


def test_a_turn_without_one_of_its_layers_is_lost(paper: Paper) -> None:
    """Two records a side, or it is not there as it should be."""
    paper.turn("t1")
    paper.hold("t1", layers=("episodic",))
    assert "lost" in paper.codes()


def test_a_record_under_another_id_is_a_double(paper: Paper) -> None:
    """The same words twice are one too many, under whatever id."""
    paper.turn("t1")
    paper.hold("t1")
    said = tell(paper.events).said["t1"]
    paper.hold_record(said, "t1:user:episodic-x", "episodic", said.markers["q"])
    assert "doubled" in paper.codes()


def test_a_second_row_in_a_table_is_seen(paper: Paper) -> None:
    """The tables are counted by hand, beside the export."""
    paper.turn("t1")
    paper.hold("t1")
    paper.held.tables[tell(paper.events).said["t1"].markers["q"]]["public.copy"] = 1
    assert paper.codes() == {"tables hold it otherwise"}


def test_what_was_begun_before_an_erase_must_be_gone(paper: Paper) -> None:
    """Acknowledged or not, before or after the request: begun before it and erased."""
    paper.turn("t1")
    paper.begin("t2")
    paper.forget("f1")
    paper.finish("t2", "refused", error="StaleTurn")
    assert paper.fate("t1") == paper.fate("t2") == "gone"
    paper.hold("t1")
    assert {"resurrected", "erased text in a table"} <= paper.codes()


def test_erased_text_in_the_planners_statistics_is_found(paper: Paper) -> None:
    """Every schema is looked through, PostgreSQL's own included."""
    paper.turn("t1")
    paper.forget("f1")
    word = tell(paper.events).said["t1"].markers["q"]
    paper.held.tables[word] = Counter({"pg_catalog.pg_statistic": 1})
    assert paper.codes() == {"erased text in a table"}


def test_what_was_begun_after_the_receipt_must_stay(paper: Paper) -> None:
    """The scope can be used again at once, even with the same turn id."""
    paper.turn("t1")
    paper.forget("f1")
    paper.begin("t2", id="t1")
    paper.finish("t2")
    assert paper.fate("t2") == "present"
    assert paper.codes() == {"lost"}


def test_what_overlaps_an_erase_may_be_either_but_whole(paper: Paper) -> None:
    """Begun between request and receipt: there or not, never half."""
    paper.ask("f1")
    paper.turn("t1")
    paper.receipt("f1")
    assert paper.violations() == []
    paper.hold("t1", layers=("working",))
    assert "partial" in paper.codes()


def test_an_erase_that_was_acknowledged_counts_without_its_receipt(paper: Paper) -> None:
    """Who asked may be killed while it waits; the erase goes on."""
    paper.turn("t1")
    paper.ask("f1")
    assert paper.fate("t1") == "either"
    paper.note("requested", "f1", job=1)
    assert paper.fate("t1") == "gone"


@pytest.mark.parametrize("answer", ["refused", "blank", "abandoned"])
def test_what_was_not_kept_must_be_nowhere(paper: Paper, answer: str) -> None:
    """Refused, blank and abandoned turns leave nothing."""
    paper.ask("f1", USER)
    paper.begin("t1")
    paper.finish("t1", answer)
    paper.hold("t1")
    assert "resurrected" in paper.codes()


def test_an_unknown_outcome_may_be_either(paper: Paper) -> None:
    """A commit that nobody heard of counts in both directions."""
    paper.begin("t1")
    paper.finish("t1", "unknown", error="MemoryUnavailable")
    assert paper.violations() == []
    paper.hold("t1")
    assert paper.violations() == []


def test_a_refusal_by_a_standing_erase_keeps_an_earlier_unknown_attempt_open(paper: Paper) -> None:
    """`ErasePending` says nothing about the attempt before; `StaleTurn` does."""
    paper.ask("f1", TRAP)
    paper.begin("t1")
    paper.finish("t1", "unknown", error="MemoryUnavailable")
    paper.finish("t1", "pending", error="ErasePending")
    assert paper.fate("t1") == "either"
    paper.finish("t1", "refused", error="StaleTurn")
    assert paper.fate("t1") == "gone"


def test_a_name_that_begins_alike_is_not_covered(paper: Paper) -> None:
    """`chat-4` does not cover `chat-42`."""
    paper.turn("t1", TRAP)
    paper.forget("f1", CHAT)
    assert paper.fate("t1") == "present"


def test_an_erase_of_a_turn_takes_that_turn_only(paper: Paper) -> None:
    """Neither its neighbour nor the turn with the same id in another scope."""
    paper.turn("t1")
    paper.turn("t2")
    paper.begin("t3", TRAP, id="t1")
    paper.finish("t3")
    paper.forget("f1", what="turns", turn_ids=["t1"])
    assert [paper.fate(op) for op in ("t1", "t2", "t3")] == ["gone", "present", "present"]


def test_an_erase_of_a_session_takes_that_session_only(paper: Paper) -> None:
    """Sessions are compared whole, and at that scope only."""
    paper.turn("t1", session="s1")
    paper.turn("t2", session="s12")
    paper.turn("t3", TRAP, session="s1")
    paper.forget("f1", what="session", session="s1")
    assert [paper.fate(op) for op in ("t1", "t2", "t3")] == ["gone", "present", "present"]


class TestFacts:
    """What was learned from a turn, and where."""

    @pytest.fixture(autouse=True)
    def told(self, paper: Paper) -> None:
        """A turn whose fact belongs to the user."""
        paper.turn("t1", sides="qaf", lift=2, mood="plain")

    def hold_fact(self, paper: Paper, at: str) -> None:
        """The fact is there."""
        said = tell(paper.events).said["t1"]
        word = said.markers["f"]
        paper.hold_record(said, "fact:t1:1", "semantic", word, at=at, origin="extracted")

    def test_a_missing_fact_is_seen(self, paper: Paper) -> None:
        """The turn is there, what it said about the dog is not."""
        paper.hold("t1")
        assert "fact lost" in paper.codes()

    def test_a_fact_at_the_wrong_scope_is_seen(self, paper: Paper) -> None:
        """It belongs where the extractor put it."""
        paper.hold("t1")
        self.hold_fact(paper, stored(("acme",)))
        assert "fact doubled or misplaced" in paper.codes()

    def test_a_fact_elsewhere_must_go_with_its_turn(self, paper: Paper) -> None:
        """`derived="erase"` reaches beyond the erased scope."""
        paper.forget("f1")
        self.hold_fact(paper, stored(USER))
        assert "fact resurrected" in paper.codes()

    def test_a_fact_elsewhere_may_be_kept(self, paper: Paper) -> None:
        """`derived="keep"` leaves it alone."""
        paper.forget("f1", derived="keep")
        self.hold_fact(paper, stored(USER))
        assert paper.violations() == []

    def test_a_kept_fact_must_go_with_its_session(self, paper: Paper) -> None:
        """What an earlier erase kept of a turn is still known to be of its session."""
        paper.turn("t2", sides="qaf", lift=2, session="s1")
        said = tell(paper.events).said["t2"]
        paper.forget("f1", derived="keep")
        paper.forget("f2", what="session", session="s2")
        word = said.markers["f"]
        paper.hold_record(said, "fact:t2:1", "semantic", word, at=stored(USER), origin="extracted")
        assert paper.violations() == []
        paper.forget("f3", what="session", session="s1", derived="keep")
        assert paper.violations() == []
        paper.forget("f4", what="session", session="s1")
        assert "fact resurrected" in paper.codes()
