"""The world of the run: its scopes, and words that can be found again wherever they turn up.

A marker is `xk`, a letter for where it was said (query, answer, fact, record), and 12 consonants:
no stemmer changes it and no text holds it by accident. A fact's marker is a name, so that the
`rules` extractor believes it.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable
from typing import Final

Segments = tuple[str, ...]

# Names that are prefixes of each other, and one that must be encoded.
TENANTS: Final = ("acme", "acme2")
USERS: Final = ("al", "alice", "bo/b é%")
CHATS: Final = ("chat-4", "chat-42", "chat-5")
SESSIONS: Final = ("s1", "s12", "s2")

# Here nothing above a conversation is ever erased, so that much must still be there at the end.
CALM: Final = "keep"

# Here nothing is ever erased: whatever was acknowledged must be there, however long the run.
VAULT: Final = "vault"
_VAULT_USERS: Final = 60

_LETTERS: Final = "bcdfghjklmnpqrstvwxz"
MARKER: Final = re.compile(rb"[xX]k[qafr][bcdfghjklmnpqrstvwxz]{12}")
_MARKER_TEXT: Final = re.compile(MARKER.pattern.decode())


def marker(side: str, *named: object) -> str:
    """The marker for one side of one op; the same arguments give the same one."""
    digest = hashlib.sha256("\x00".join(map(str, (side, *named))).encode()).digest()
    word = f"xk{side}" + "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest[:12])
    return word.capitalize() if side == "f" else word


def markers_in(text: str) -> set[str]:
    """All markers of a text."""
    return set(_MARKER_TEXT.findall(text))


def markers_in_bytes(data: bytes) -> set[str]:
    """All markers of raw bytes."""
    return {found.decode() for found in MARKER.findall(data)}


def shown(word: str) -> str:
    """A marker as reports show it."""
    return hashlib.sha256(word.encode()).hexdigest()[:12]


def conversations() -> list[Segments]:
    """Every conversation of the world."""
    return [(t, u, c) for t in (*TENANTS, CALM) for u in USERS for c in CHATS]


def vault() -> list[Segments]:
    """The users of whom everything is kept."""
    return [(VAULT, f"u{number}") for number in range(_VAULT_USERS)]


def roots() -> list[Segments]:
    """Every tenant."""
    return [(tenant,) for tenant in (*TENANTS, CALM, VAULT)]


def some_place(rng: random.Random) -> Segments:
    """Where to say something: mostly in a conversation, sometimes with the user as such."""
    place = rng.choice(conversations())
    return place[:2] if rng.random() < 0.15 else place


def covers(upper: Iterable[str], lower: Iterable[str]) -> bool:
    """Whether the first scope is the second or above it."""
    upper, lower = tuple(upper), tuple(lower)
    return lower[: len(upper)] == upper


_VOCABULARY: Final = re.findall(
    r"\S+",
    """
    autumn bakery balcony bicycle bridge candle carpet castle cello chestnut cinema coffee compass
    cousin cradle daisy dentist desert drawer elbow engine feather ferry flute forest garden ginger
    glacier guitar harbour hammock hiking island jacket kettle ladder lantern lemon letter library
    marathon market mirror mountain museum needle neighbour notebook oatmeal orchard oven painting
    passport pepper pillow planet pottery quilt rabbit railway recipe river saddle sailing school
    sculpture shadow skating spoon station stove sunrise teacher theatre thunder ticket tomato
    tunnel umbrella vaccine valley village violin wallet walnut weather window winter workshop
    müde straße 猫 魚 🐈 über naïve façade
    """,
)


def _chatter(rng: random.Random) -> str:
    """Some words, so that no two texts are alike; now and then many."""
    count = rng.choice([4, 8, 15, 15, 60])
    return " ".join(rng.choices(_VOCABULARY, k=count))


def query_text(rng: random.Random, word: str, fact: str | None) -> str:
    """What the user says; with a fact that the rules find."""
    told = f" My dog is called {fact}." if fact else ""
    return f"  Tell me more about {word}, {_chatter(rng)}, please.{told} Thank you\n"


def answer_text(rng: random.Random, word: str) -> str:
    """What the assistant says."""
    return f"There is a lot to say about {word}: {_chatter(rng)}."


def record_text(rng: random.Random, word: str) -> str:
    """What is written by hand."""
    return f"Remember {word} with {_chatter(rng)}."
