"""The line that a script reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torturing.judging import Violation
from tests.torturing.run import Options, Report, show

OPTIONS = Options(
    seed=7,
    duration=600,
    faults="all",
    home=Path("home"),
    notes=Path("notes"),
    script=Path("torture.py"),
    sabotage=None,
)
NUMBERS = {"turns": 12, "acknowledged": 11, "kills": 3, "broker_losses": 2, "pauses": 5}


def test_a_run_without_a_violation_is_ok() -> None:
    """Turns, kills, losses and the verdict."""
    assert show(OPTIONS, Report(numbers=NUMBERS)) == (
        "torture seed=7 duration=600s faults=all turns=12 acknowledged=11 kills=3 "
        "broker_losses=2 lost=0 doubled=0 out_of_order=0 resurrected=0 violations=0 VERDICT ok"
    )


@pytest.mark.parametrize(
    ("code", "counted"),
    [
        ("lost", "lost=1"),
        ("fact lost", "lost=1"),
        ("doubled", "doubled=1"),
        ("order", "out_of_order=1"),
        ("resurrected", "resurrected=1"),
        ("erased text read", "resurrected=1"),
        ("crash", "resurrected=0"),
    ],
)
def test_any_violation_is_counted_and_decides(code: str, counted: str) -> None:
    """Those of the promise by name, all of them in the total."""
    last = show(OPTIONS, Report([Violation(code, "op", "it")], NUMBERS))
    assert counted in last.split()
    assert last.endswith("violations=1 VERDICT VIOLATED")


def test_what_could_not_be_counted_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """A run that broke off before its audit has no figures, and is no success."""
    last = show(OPTIONS, Report([Violation("audit failed", "", "KeyError")]))
    assert "turns=?" in last
    assert last.endswith("VERDICT VIOLATED")
    assert "KeyError" in capsys.readouterr().out
