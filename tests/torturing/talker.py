"""Talkers: turns, facts written by hand, their own flushes and reads, and "forget that"."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from afterturn import Memory, MemoryLayer, MemoryRecord, Turn, TurnTicket, WriteRequest
from afterturn.errors import (
    AfterturnError,
    ErasePending,
    MemoryContractError,
    MemoryUnavailable,
    StaleTurn,
)
from tests.torturing import erasing, looking, words
from tests.torturing.acting import Actor, now_seconds, scope_of
from tests.torturing.words import Segments

_ANSWER_SECONDS = 20.0
_MOODS = ("fail", "rubbish", "foreign", "hang")


@dataclass
class Plan:
    """A turn about to be had."""

    op: str
    scope: Segments
    turn_id: str
    session: str | None
    query: str | None
    answer: str | None
    markers: dict[str, str]
    metadata: dict[str, object] = field(default_factory=dict)
    degrade: bool = False


async def talk(actor: Actor, memory: Memory, rng: random.Random) -> None:
    """One thing that a caller does with memory."""
    await actor.pause(rng.uniform(0.02, 0.25))
    what = rng.random()
    scope = words.some_place(rng)
    if what < 0.10:
        await remember(actor, memory, rng, scope)
    elif what < 0.18:
        await write(actor, memory, rng, scope)
    elif what < 0.22:
        await flush(actor, memory, rng.choice([scope, scope[:2], scope[:1]]))
    else:
        plan = plan_turn(actor, rng, scope)
        turn = await have_turn(actor, memory, rng, plan)
        if turn is not None:
            await _go_on(actor, memory, rng, turn, plan)


async def hurry(actor: Actor, memory: Memory, rng: random.Random) -> None:
    """Several turns of one user at once, without a look or a thought; nobody erases them."""
    await actor.pause(rng.uniform(0.4, 1.6))
    scope = rng.choice(words.vault())
    plans = [plan_turn(actor, rng, scope) for _ in range(rng.randint(4, 12))]
    for plan in plans:
        if rng.random() < 0.9:  # a tenant full of facts would hide what a read of it must show
            plan.metadata.pop("lift", None)
    await asyncio.gather(*(_hurried(actor, memory, plan) for plan in plans))


async def _hurried(actor: Actor, memory: Memory, plan: Plan) -> None:
    turn = await _begun(actor, memory, plan)
    if turn is not None:
        await finish(actor, turn, plan)


def plan_turn(
    actor: Actor, rng: random.Random, scope: Segments, turn_id: str | None = None
) -> Plan:
    """What will be said."""
    op = actor.history.new_op()
    sides = rng.choices(["qa", "q", "a", ""], [88, 5, 5, 2])[0]
    has_fact = "q" in sides and rng.random() < 0.5
    wanted = sides + ("f" if has_fact else "")
    markers = {side: words.marker(side, actor.seed, op) for side in wanted}
    metadata: dict[str, object] = {}
    if has_fact:
        metadata["mood"] = _mood(rng)
        metadata["seconds"] = round(rng.choice([0.0, rng.uniform(0, 0.5), rng.uniform(0, 1)]), 3)
        if rng.random() < 0.4:
            metadata["lift"] = rng.randint(1, len(scope) - 1)
    query = words.query_text(rng, markers["q"], markers.get("f")) if "q" in sides else None
    return Plan(
        op=op,
        scope=scope,
        turn_id=turn_id or op,
        session=rng.choice([None, *words.SESSIONS]),
        query=query if query is not None else rng.choice([None, "", " \n"]),
        answer=words.answer_text(rng, markers["a"]) if "a" in sides else rng.choice([None, "  "]),
        markers=markers,
        metadata=metadata,
        degrade=rng.random() < 0.15,
    )


def _mood(rng: random.Random) -> str:
    draw = rng.random()
    if draw < 0.004:
        return "die"
    return rng.choice(_MOODS) if draw < 0.05 else "plain"


async def have_turn(actor: Actor, memory: Memory, rng: random.Random, plan: Plan) -> Turn | None:
    """Begin, read, think, finish; the turn if it was acknowledged."""
    turn = await _begun(actor, memory, plan)
    if turn is None:
        return None
    if rng.random() < 0.5:
        await looking.look_in_turn(actor, turn, plan.scope, plan.query or "anything")
    if rng.random() < 0.03:
        await turn.abandon()
        actor.note("abandoned", op=plan.op)
        return None
    await actor.pause(rng.choice([0.0, rng.uniform(0, 0.3), rng.uniform(0, 2.5)]))
    return turn if await finish(actor, turn, plan) is not None else None


async def _begun(actor: Actor, memory: Memory, plan: Plan) -> Turn | None:
    actor.note(
        "begin",
        op=plan.op,
        scope=plan.scope,
        id=plan.turn_id,
        session=plan.session,
        markers=plan.markers,
        mood=plan.metadata.get("mood"),
        lift=plan.metadata.get("lift", 0),
        degrade=plan.degrade,
    )
    try:
        turn = await memory.begin_turn(
            scope_of(plan.scope),
            session=plan.session,
            turn_id=plan.turn_id,
            on_unavailable="degrade" if plan.degrade else "raise",
        )
    except MemoryUnavailable as error:
        actor.note("begin_refused", op=plan.op, error=_told(error))
        return None
    actor.note("began", op=plan.op)
    return turn


async def finish(actor: Actor, turn: Turn, plan: Plan) -> TurnTicket | None:
    """Hand the turn over; while the outcome is unknown, again."""
    deadline = now_seconds() + _ANSWER_SECONDS
    while True:
        actor.note("finish", op=plan.op)
        try:
            ticket = await turn.finish(plan.query, plan.answer, metadata=plan.metadata, names=None)
        except ErasePending as error:
            actor.note("pending", op=plan.op, error=_told(error))
        except MemoryUnavailable as error:
            actor.note("unknown", op=plan.op, error=_told(error))
        except StaleTurn as error:
            actor.note("refused", op=plan.op, error=_told(error))
            return None
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            actor.crashed(error, plan.op)
            return None
        else:
            if ticket.status == "staged":
                actor.note("acked", op=plan.op)
                return ticket
            if ticket.status == "blank":
                actor.note("blank", op=plan.op)
                return None
            if ticket.status == "refused" and "stale" in ticket.reason:
                actor.note("refused", op=plan.op, error=ticket.reason)
                return None
            is_known = ticket.status == "refused"
            actor.note("pending" if is_known else "unknown", op=plan.op, error=ticket.reason)
        if now_seconds() > deadline or actor.stopping.is_set():
            return None
        await actor.pause(0.2)


async def _go_on(actor: Actor, memory: Memory, rng: random.Random, turn: Turn, plan: Plan) -> None:
    """What may follow an acknowledged turn."""
    draw = rng.random()
    if draw < 0.20:
        if await flush(actor, memory, plan.scope, of=plan.op):
            await looking.look_for(actor, memory, plan.scope, plan.op, _words_of(plan))
    elif draw < 0.32:
        await _hand_over_again(actor, rng, turn, plan)
    elif draw < 0.42:
        await _same_id_elsewhere(actor, memory, rng, plan)
    elif draw < 0.47 and len(plan.scope) == 3:
        done = await erasing.forget(
            actor, memory, rng, plan.scope, what="turns", turn_ids=(plan.turn_id,)
        )
        if done and rng.random() < 0.7:
            again = plan_turn(actor, rng, plan.scope, plan.turn_id)
            await have_turn(actor, memory, rng, again)


async def _hand_over_again(actor: Actor, rng: random.Random, turn: Turn, plan: Plan) -> None:
    """The same turn a second time, as a caller does who never got the answer."""
    await actor.pause(rng.choice([0.0, rng.uniform(0, 2.0)]))
    actor.note("again", op=plan.op)
    try:
        await turn.finish(plan.query, plan.answer, metadata=plan.metadata)
    except StaleTurn as error:
        actor.note("denied", op=plan.op, error=_told(error))
    except MemoryUnavailable as error:
        actor.note("again_failed", op=plan.op, error=_told(error))


async def _same_id_elsewhere(actor: Actor, memory: Memory, rng: random.Random, plan: Plan) -> None:
    """The same turn id in another scope is another turn."""
    place = rng.choice([c for c in words.conversations() if c != plan.scope])
    await have_turn(actor, memory, rng, plan_turn(actor, rng, place, plan.turn_id))


async def flush(actor: Actor, memory: Memory, scope: Segments, of: str = "") -> bool:
    """Flush a scope; whether the receipt says done. `of` names the op that it publishes."""
    op = actor.history.new_op()
    actor.note("flush", op=op, scope=scope, of=of)
    try:
        receipt = await memory.flush(scope_of(scope))
    except MemoryUnavailable as error:
        actor.note("flush_unknown", op=op, error=_told(error))
        return False
    actor.note("flushed", op=op, of=of, receipt=erasing.told_receipt(receipt))
    return receipt.outcome == "done"


async def remember(actor: Actor, memory: Memory, rng: random.Random, scope: Segments) -> None:
    """One fact, written and flushed in one call."""
    op = actor.history.new_op()
    word = words.marker("r", actor.seed, op)
    text = words.record_text(rng, word)
    actor.note("remember", op=op, scope=scope, id=op, markers={"r": word})
    try:
        await memory.remember(scope_of(scope), text, record_id=op, importance=0.9)
    except MemoryUnavailable as error:
        actor.note("unknown", op=op, error=_told(error))
    except StaleTurn as error:
        actor.note("refused", op=op, error=_told(error))
    else:
        actor.note("acked", op=op, published=True)
        if rng.random() < 0.3:
            await looking.look_for(actor, memory, scope, op, text)


async def write(actor: Actor, memory: Memory, rng: random.Random, scope: Segments) -> None:
    """One fact with a turn's token, pending until somebody flushes."""
    op = actor.history.new_op()
    word = words.marker("r", actor.seed, op)
    actor.note("remember", op=op, scope=scope, id=op, markers={"r": word})
    record = MemoryRecord(
        record_id=op,
        text=words.record_text(rng, word),
        scope_path=scope_of(scope).path,
        layer=MemoryLayer.PROCEDURAL,
        origin="torture",
    )
    try:
        turn = await memory.begin_turn(scope_of(scope))
        actor.note("began", op=op)
        await actor.pause(rng.uniform(0, 0.5))
        receipt = await memory.write(
            WriteRequest(scope=scope_of(scope), records=(record,), token=turn.token)
        )
    except MemoryUnavailable as error:
        actor.note("unknown", op=op, error=_told(error))
        return
    except MemoryContractError as error:
        actor.note("refused", op=op, error=_told(error))
        return
    actor.note("acked", op=op, outcome=receipt.outcomes[0].status)
    if rng.random() < 0.7 and await flush(actor, memory, scope, of=op):
        await looking.look_for(actor, memory, scope, op, record.text)


def _words_of(plan: Plan) -> str:
    """What finds it again."""
    sides = [plan.query, plan.answer]
    return next(side for side in sides if side and side.strip())


def _told(error: AfterturnError) -> str:
    return f"{type(error).__name__}: {error}"
