"""Receipts of lifecycle jobs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from afterturn.intake import Time
from afterturn.model import Model

LifecycleKind = Literal["flush", "forget", "expire"]
LifecycleOutcome = Literal["done", "superseded", "requeued"]


class LifecycleReceipt(Model):
    """What a lifecycle job did.

    `counts` is rows per table; `derived_outside` counts records elsewhere that were learned from
    the erased scope and left alone; `not_covered` names plugged-in sources that afterturn cannot
    erase; `generation` is the scope's new erase (forget) or content (flush) number; `log_head`
    the hash of the erase log's entry. `scope_path` is empty once the scope itself was erased and
    the receipt is read by id alone.
    """

    job_id: int
    kind: LifecycleKind
    scope_path: str
    outcome: LifecycleOutcome
    counts: dict[str, int] = Field(default_factory=dict)
    derived_outside: int = 0
    not_covered: tuple[str, ...] = ()
    generation: int = 0
    requested_at: Time
    completed_at: Time
    log_head: str = ""
