"""Erasers: scopes at every level, sessions, named turns; by every way there is."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from afterturn import LifecycleReceipt, Memory
from afterturn.errors import MemoryUnavailable
from tests.torturing import looking, words
from tests.torturing.acting import Actor, now_seconds, scope_of
from tests.torturing.words import Segments

What = Literal["scope", "turns", "session"]
Derived = Literal["keep", "erase"]
_RECEIPT_SECONDS = 40.0


async def erase(actor: Actor, memory: Memory, rng: random.Random) -> None:
    """One forget, and a look at once after its receipt."""
    await actor.pause(rng.uniform(0.3, 2.2))
    place = rng.choice(words.conversations())
    what: What = "session" if rng.random() < 0.3 else "scope"
    if what == "scope" and place[0] != words.CALM:
        place = place[: rng.choices([3, 2, 1], [70, 20, 10])[0]]
    session = rng.choice(words.SESSIONS) if what == "session" else None
    if await forget(actor, memory, rng, place, what=what, session=session):
        await looking.look_everywhere(actor, memory, place)


async def forget(
    actor: Actor,
    memory: Memory,
    rng: random.Random,
    scope: Segments,
    *,
    what: What,
    turn_ids: Sequence[str] = (),
    session: str | None = None,
) -> bool:
    """Ask for it and wait for the receipt; whether it came."""
    derived: Derived = "keep" if rng.random() < 0.15 else "erase"
    via = (
        "named"
        if what != "scope"
        else rng.choices(["enqueue", "facade", "port", "cli"], [45, 35, 10, 10])[0]
    )
    derived = "keep" if via == "port" else derived
    op = actor.history.new_op()
    actor.note(
        "forget",
        op=op,
        scope=scope,
        what=what,
        turn_ids=list(turn_ids),
        session=session,
        derived=derived,
        via=via,
    )
    try:
        receipt = await _asked(actor, memory, op, scope, via, turn_ids, session, derived)
    except MemoryUnavailable as error:
        actor.note("forget_unknown", op=op, error=f"{type(error).__name__}: {error}")
        return False
    if receipt is None:
        return False
    actor.note("receipt", op=op, receipt=receipt)
    return True


async def _asked(
    actor: Actor,
    memory: Memory,
    op: str,
    scope: Segments,
    via: str,
    turn_ids: Sequence[str],
    session: str | None,
    derived: Derived,
) -> dict[str, object] | None:
    place = scope_of(scope)
    if via == "cli":
        return await _by_command(actor, op, scope, derived)
    if via == "port":
        return told_receipt(await memory.lifecycle.forget(place))
    if via == "facade":
        return told_receipt(await memory.forget(place, derived=derived, requested_by="torture"))
    if via == "named":
        receipt = await memory.forget_records(
            place, turn_ids=turn_ids, session=session, derived=derived, reason=op
        )
        return told_receipt(receipt)
    ticket = await memory.enqueue_forget(place, derived=derived, reason=op)
    actor.note("requested", op=op, job=ticket.job_id)
    deadline = now_seconds() + _RECEIPT_SECONDS
    while True:
        try:
            return told_receipt(await ticket.wait(timeout=5))
        except MemoryUnavailable as error:
            actor.note("waiting", op=op, error=str(error))
            if now_seconds() > deadline or actor.stopping.is_set():
                raise
            await actor.pause(0.2)


async def _by_command(
    actor: Actor, op: str, scope: Segments, derived: Derived
) -> dict[str, object] | None:
    """`afterturn forget` as an operator types it."""
    command = Path(sys.executable).with_name("afterturn")
    text = "/".join(quote(segment, safe="") for segment in scope)
    process = await asyncio.create_subprocess_exec(
        str(command), "forget", text, "--derived", derived, "--json",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=dict(os.environ),
    )  # fmt: skip
    out, err = await process.communicate()
    if process.returncode != 0:
        actor.note("command_failed", op=op, code=process.returncode, error=err.decode()[-400:])
        return None
    receipt: dict[str, object] = json.loads(out)
    return receipt


def told_receipt(receipt: LifecycleReceipt) -> dict[str, object]:
    """A receipt for the notes."""
    return receipt.model_dump(mode="json")
