"""What long work shows while it is under way."""

from __future__ import annotations

import asyncio
import io

import pytest
import rich.console

from afterturn import JobTicket, LifecycleReceipt
from afterturn.cli import progress

RECEIPT = LifecycleReceipt(
    job_id=1,
    kind="forget",
    scope_path="v1/acme",
    outcome="done",
    requested_at="2026-01-01T00:00:00Z",
    completed_at="2026-01-01T00:00:09Z",
)


@pytest.mark.parametrize(
    ("counts", "line"),
    [
        ({}, "erased so far: no rows"),
        ({"turns": 0}, "erased so far: no rows"),
        (
            {"turns": 1_200, "memories": 4_800_000},
            "erased so far: 1,200 of turns, 4,800,000 of memories",
        ),
    ],
)
def test_an_erase_tells_its_rows_so_far(counts: dict[str, int], line: str) -> None:
    """Per table, as the receipt will."""
    assert progress.progress_line(counts, "erased") == line


@pytest.mark.parametrize("is_terminal", [True, False])
async def test_progress_is_shown_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    """And the receipt is the ticket's in any case."""
    shown = io.StringIO()
    console = rich.console.Console(file=shown, force_terminal=is_terminal, width=100)
    monkeypatch.setattr(progress, "Console", lambda stderr: console)
    monkeypatch.setattr(progress, "LOOK_SECONDS", 0.0)
    looks = 0

    async def wait(timeout: float | None) -> LifecycleReceipt:
        while is_terminal and looks < 3:
            await asyncio.sleep(0)
        return RECEIPT

    async def so_far() -> dict[str, int]:
        nonlocal looks
        looks += 1
        return {"memories": 2_000 * looks}

    assert await progress.watched(JobTicket(1, wait, so_far), "erased") == RECEIPT
    assert ("erased so far" in shown.getvalue()) == is_terminal
