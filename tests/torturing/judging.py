"""What must be there and what must not, judged from the notes alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any, Literal

from tests.torturing.findings import Held
from tests.torturing.story import Effect, Erase, Look, Said, Story, stored
from tests.torturing.words import Segments, covers, markers_in, shown

Fate = Literal["present", "gone", "either"]
_NEVER = 1 << 62
_LAYERS = ("working", "episodic")
_SPEAKERS = {"q": "user", "a": "assistant"}


@dataclass(frozen=True)
class Violation:
    """One promise that was not kept; `op` is found in the notes."""

    code: str
    op: str
    detail: str

    def __str__(self) -> str:
        return f"VIOLATION {self.code} op={self.op or '-'} {self.detail}"


@dataclass
class Verdict:
    """What the erases of the run mean for one thing said."""

    said: Said
    fate: Fate
    fact_fate: Fate
    erases: list[Erase] = field(default_factory=list)  # that may or must have taken it
    touched_from: int = _NEVER  # from here on it may be gone
    dead_from: int = _NEVER  # from here on nobody may see it
    fact_dead_from: int = _NEVER


def judge(story: Story) -> dict[str, Verdict]:
    """The verdict on everything said, by op."""
    by_root = _by_root(story)
    return {op: _verdict(said, by_root.get(said.scope[0], [])) for op, said in story.said.items()}


def _by_root(story: Story) -> dict[str, list[Erase]]:
    """An erase concerns nobody beyond its tenant."""
    by_root: dict[str, list[Erase]] = {}
    for erase in story.erases.values():
        by_root.setdefault(erase.scope[0], []).append(erase)
    return by_root


def _verdict(said: Said, erases: list[Erase]) -> Verdict:
    effects = [(erase, erase.effect_on(said)) for erase in erases]
    near = [erase for erase, effect in effects if effect is not Effect.NONE]
    must = [erase for erase, effect in effects if effect is Effect.MUST]
    lifted = said.fact_path != stored(said.scope)
    taking = [e for e in must if _holds_fact(e, said) or not lifted or e.derived == "erase"]
    verdict = Verdict(said, "either", "either", near)
    if said.outcome == "refused" or must:
        verdict.fate = "gone"
    elif said.outcome == "acked" and not near:
        verdict.fate = "present"
    if said.outcome == "refused" or taking:
        verdict.fact_fate = "gone"
    elif verdict.fate == "present":
        verdict.fact_fate = "present"
    verdict.touched_from = min((e.asked_at for e in near), default=_NEVER)
    verdict.dead_from = min((_standing(e) for e in must), default=_NEVER)
    verdict.fact_dead_from = min(
        (_standing(e) if _holds_fact(e, said) else e.done_at or _NEVER for e in taking),
        default=_NEVER,
    )
    return verdict


def _holds_fact(erase: Erase, said: Said) -> bool:
    return covers(erase.scope, said.scope[: said.lift] if said.lift else said.scope)


def _standing(erase: Erase) -> int:
    return erase.standing_at or erase.done_at or _NEVER


# -- what is held at the end


def check_held(verdicts: dict[str, Verdict], held: Held) -> Iterator[Violation]:
    """Everything is there once, or not at all, as its fate says."""
    for op, verdict in verdicts.items():
        yield from _check_one(op, verdict, held)
    known = {word for v in verdicts.values() for word in v.said.markers.values()}
    for word in held.words() - known:
        yield Violation("alien", "", f"a word that nobody said, {shown(word)}")


def _check_one(op: str, verdict: Verdict, held: Held) -> Iterator[Violation]:
    said = verdict.said
    found = _units(said, held)
    facts = {unit: n for unit, n in found.items() if unit.startswith("fact")}
    raw = {unit: n for unit, n in found.items() if unit not in facts}
    wanted = _wanted_units(said)
    about = f"{_about(verdict)}; held {dict(sorted(found.items()))}"
    if verdict.fate == "gone" and raw:
        yield Violation("resurrected", op, about)
    elif verdict.fate == "present" and raw != wanted:
        is_less = any(raw.get(unit, 0) < n for unit, n in wanted.items())
        yield Violation("lost" if is_less else "doubled", op, about)
    elif verdict.fate == "either" and raw and raw != wanted:
        yield Violation("partial", op, about)
    yield from _check_facts(op, verdict, facts, bool(raw), held, about)
    yield from _check_tables(op, verdict, raw == wanted, sum(facts.values()), held, about)


def _check_facts(
    op: str, verdict: Verdict, facts: dict[str, int], is_there: bool, held: Held, about: str
) -> Iterator[Violation]:
    said = verdict.said
    may_have = said.mood == "plain" and "f" in said.markers
    if verdict.fact_fate == "gone" and facts:
        yield Violation("fact resurrected", op, about)
    elif facts and (not may_have or facts != {"fact": 1}):
        yield Violation("fact doubled or misplaced", op, about)
    elif verdict.fate == "gone":
        return
    elif may_have and is_there and not facts and not held.is_parked(said):
        yield Violation("fact lost", op, f"{about}; {held.outcome_of(said)}")


def _check_tables(
    op: str, verdict: Verdict, is_whole: bool, facts: int, held: Held, about: str
) -> Iterator[Violation]:
    said = verdict.said
    for side, word in said.markers.items():
        tables = held.tables.get(word, Counter())
        own = {t: n for t, n in tables.items() if not t.startswith("pg_catalog.")}
        if verdict.fate == "gone" and (verdict.fact_fate == "gone" or side != "f") and tables:
            yield Violation("erased text in a table", op, f"{about}; {side} in {dict(tables)}")
        wanted: Counter[str] = Counter()
        if said.kind == "record":
            wanted["afterturn.memories"] = 1
        else:
            wanted["afterturn.turns"] = 1
            wanted["afterturn.memories"] = 2 + (facts if side == "f" else 0)
        if is_whole and own != wanted:
            yield Violation("tables hold it otherwise", op, f"{about}; {side} in {own}")


def _wanted_units(said: Said) -> dict[str, int]:
    if said.kind == "record":
        return {"record": 1}
    sides = [_SPEAKERS[side] for side in said.markers if side in _SPEAKERS]
    return {"turn": 1, **{f"{who}:{layer}": 1 for who in sides for layer in _LAYERS}}


def _units(said: Said, held: Held) -> dict[str, int]:
    """What the export holds of it; a unit that is not where it belongs says so."""
    found: Counter[str] = Counter()
    for item in held.items_with(set(said.markers.values())):
        place = item["scope_path"]
        at_home = place == stored(said.scope)
        if item["kind"] == "turn":
            is_it = at_home and item["turn_id"] == said.id
            found["turn" if is_it else f"turn {item['turn_id']} at {place}"] += 1
        elif item["origin"] == "extracted":
            found["fact" if place == said.fact_path else f"fact at {place}"] += 1
        elif said.kind == "record":
            is_it = at_home and item["record_id"] == said.id
            found["record" if is_it else f"record {item['record_id']} at {place}"] += 1
        else:
            unit = item["record_id"].removeprefix(f"{said.id}:")
            fits = at_home and unit.endswith(f":{item['layer']}")
            found[unit if fits else f"record {item['record_id']} at {place}"] += 1
    return dict(found)


def _about(verdict: Verdict) -> str:
    said = verdict.said
    erases = [f"{e.op}/{e.what}/{e.derived}@{'/'.join(e.scope)}" for e in verdict.erases]
    words = {side: shown(word) for side, word in said.markers.items()}
    return (
        f"{said.kind} {said.id} of {stored(said.scope)} session={said.session} {said.outcome} "
        f"{said.refused} should be {verdict.fate} (fact {verdict.fact_fate}, {said.mood}, lift "
        f"{said.lift}), words {words}, erases {erases[:4]}"
    )


# -- what was seen and told on the way


def check_tokens(story: Story, verdicts: dict[str, Verdict]) -> Iterator[Violation]:
    """No stale turn was acknowledged, and none was refused without an erase."""
    by_root = _by_root(story)
    for op, verdict in verdicts.items():
        said = verdict.said
        erases = by_root.get(said.scope[0], [])
        if said.acked and said.kind == "turn":
            for erase in erases:
                if erase.makes_stale(said):
                    yield Violation("stale turn acknowledged", op, f"{erase.op}; {_about(verdict)}")
        if said.denied and verdict.fate == "present":
            yield Violation("known turn answered stale", op, _about(verdict))
        is_stale = said.refused == "refused" or said.reason.startswith("ErasePending")
        if is_stale and not said.degrade and not any(e.may_refuse(said) for e in erases):
            yield Violation("refused without an erase", op, f"{said.reason}; {_about(verdict)}")


def check_looks(story: Story, verdicts: dict[str, Verdict]) -> Iterator[Violation]:
    """No read showed what was erased, beside it, or not yet there; none missed what was."""
    said_by = {word: said.op for word, said in story.by_marker().items()}
    published = _by_scope(v for v in verdicts.values() if v.said.published_at is not None)
    kept = _by_scope(v for v in verdicts.values() if v.fate == "present")
    for look in story.looks:
        for path, seen in look.seen.items():
            if not _may_look(look, path):
                yield Violation("scope", "", f"{_look_about(look)} saw {path}")
            for word in seen:
                if word not in said_by:
                    yield Violation("alien", "", f"{_look_about(look)} saw {shown(word)}")
                    continue
                yield from _check_seen(look, path, word, verdicts[said_by[word]])
        if look.whole or look.wanted:
            yield from _check_missed(look, kept if look.is_last else published)


def _check_seen(look: Look, path: str, word: str, verdict: Verdict) -> Iterator[Violation]:
    said = verdict.said
    about = f"{_look_about(look)} saw {shown(word)} at {path}; {_about(verdict)}"
    is_fact = word == said.markers.get("f")
    is_lifted = is_fact and path != stored(said.scope)
    allowed = {stored(said.scope), *((said.fact_path,) if is_fact else ())}
    dead_from = verdict.fact_dead_from if is_lifted else verdict.dead_from
    if path not in allowed:
        yield Violation("seen elsewhere", said.op, about)
    if look.started_at > dead_from:
        yield Violation("erased text read", said.op, about)
    if said.tried_at is None or look.ended_at < said.tried_at:
        yield Violation("read before it was said", said.op, about)
    if said.outcome == "refused" and not said.ever_unknown:
        yield Violation("refused text read", said.op, about)


def _by_scope(verdicts: Iterable[Verdict]) -> dict[Segments, list[Verdict]]:
    by_scope: dict[Segments, list[Verdict]] = {}
    for verdict in verdicts:
        by_scope.setdefault(verdict.said.scope, []).append(verdict)
    return by_scope


def _check_missed(look: Look, by_scope: dict[Segments, list[Verdict]]) -> Iterator[Violation]:
    seen = look.markers
    above = (look.scope[: depth + 1] for depth in range(len(look.scope)))
    for verdict in chain.from_iterable(by_scope.get(scope, []) for scope in above):
        said = verdict.said
        if not (look.whole or look.wanted == said.op):
            continue
        since = 0 if look.is_last else said.published_at or _NEVER
        if since < look.started_at and look.ended_at < verdict.touched_from:
            missing = {w for side, w in said.markers.items() if side != "f"} - seen
            if missing if look.whole else not seen & set(said.markers.values()):
                yield Violation("missed", said.op, f"{_look_about(look)}; {_about(verdict)}")


def _may_look(look: Look, path: str) -> bool:
    place = stored(look.scope)
    if look.via == "export":
        return f"{path}/".startswith(f"{place}/")
    if look.via in ("list", "transcript"):
        return path == place
    return f"{place}/".startswith(f"{path}/")


def _look_about(look: Look) -> str:
    return f"{look.who} {look.via} of {stored(look.scope)} at {look.started_at}"


def check_alarms(story: Story) -> Iterator[Violation]:
    """What the processes noticed themselves, and errors that quote memory."""
    for event in story.alarms:
        code = "crash" if event["e"] == "crash" else "noticed"
        yield Violation(code, event.get("op", ""), f"{event['error']} {event.get('at', '')}")
    for event in story.errors:
        if markers_in(str(event["error"])):
            yield Violation("text in an error", event.get("op", ""), f"{event['who']} {event['e']}")


def check_order(receipts: list[dict[str, Any]]) -> Iterator[Violation]:
    """Overlapping lifecycle jobs completed in the order of their ids, which is that of asking."""
    by_root: dict[str, list[dict[str, Any]]] = {}
    for receipt in sorted(receipts, key=lambda each: int(each["job_id"])):
        if receipt["outcome"] == "done":
            by_root.setdefault(receipt["scope_path"].split("/")[1], []).append(receipt)
    for done in by_root.values():
        yield from _check_order_of(done)


def _check_order_of(done: list[dict[str, Any]]) -> Iterator[Violation]:
    for at, later in enumerate(done):
        for earlier in done[:at]:
            if earlier["job_id"] == later["job_id"] or not _overlap(earlier, later):
                continue
            if _completed(earlier) > _completed(later):
                yield Violation("order", "", f"{_job(earlier)} completed after {_job(later)}")
            if later["told_at"] < earlier["asked_at"]:
                yield Violation("order", "", f"{_job(earlier)} asked after {_job(later)} was done")


def _overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    a, b = f"{one['scope_path']}/", f"{other['scope_path']}/"
    return a.startswith(b) or b.startswith(a)


def _completed(receipt: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(receipt["completed_at"])


def _job(receipt: dict[str, Any]) -> str:
    return f"{receipt['kind']} {receipt['job_id']} of {receipt['scope_path']}"
