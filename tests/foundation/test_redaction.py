"""What looks like a secret is not kept, where that was asked for."""

from __future__ import annotations

import base64
import random

import pytest

from afterturn import Memory, MemoryScope
from afterturn.database import Database
from afterturn.redaction import CARD, KEY, PASSWORD, redacted
from afterturn.settings import Settings

_RANDOM = random.Random(7)


def letters(count: int) -> str:
    return "".join(
        _RANDOM.choices("abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789", k=count)
    )


def pem(kind: str) -> str:
    body = base64.b64encode(letters(600).encode()).decode()
    return f"-----BEGIN {kind}-----\n{body}\n-----END {kind}-----"


SECRETS = {
    "openai": "sk-proj-" + letters(48),
    "anthropic": "sk-ant-" + letters(90),
    "stripe": "sk_live_" + letters(24),
    "aws": "AKIA" + "ABCDEFGH12345678",
    "google": "AIza" + letters(35),
    "github": "ghp_" + letters(36),
    "github fine": "github_pat_" + letters(60),
    "gitlab": "glpat-" + letters(20),
    "slack": "xoxb-1234567890-" + letters(24),
    "hugging face": "hf_" + letters(34),
    "jwt": f"eyJ{letters(30)}.eyJ{letters(80)}.{letters(43)}",
    "rsa": pem("RSA PRIVATE KEY"),
    "openssh": pem("OPENSSH PRIVATE KEY"),
}


@pytest.mark.parametrize("kind", SECRETS)
def test_keys_of_known_shapes_go(kind: str) -> None:
    """Wherever they stand in a sentence; what is around them stays."""
    for before, after in (("My key is ", ", keep it."), ("`", "`"), ("(", ")"), ("", "")):
        assert redacted(f"{before}{SECRETS[kind]}{after}") == f"{before}{KEY}{after}"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("password: hunter2!", f"password: {PASSWORD}"),
        ("my password is Tr0ub4dor&3 ok", f"my password is {PASSWORD} ok"),
        ('{"api_key": "abc123def456"}', f'{{"api_key": "{PASSWORD}"}}'),
        ("DB_PASSWORD=s3cret-pw", f"DB_PASSWORD={PASSWORD}"),
        ("postgresql://bob:hunter2@db/x", f"postgresql://bob:{PASSWORD}@db/x"),
        ("redis://:p4ss@h:1", f"redis://:{PASSWORD}@h:1"),
        ("Authorization: Bearer abcdef0123456789abcdef", f"Authorization: Bearer {KEY}"),
    ],
)
def test_passwords_that_are_named_go(text: str, kept: str) -> None:
    """Their name stays, so that the sentence still says what it was about."""
    assert redacted(text) == kept


@pytest.mark.parametrize(
    "card",
    ["4111111111111111", "4111 1111 1111 1111", "5500-0000-0000-0004", "340000000000009",
     "6011000000000004", "30000000000004"],
)  # fmt: skip
def test_card_numbers_go(card: str) -> None:
    """With their check digit right, in groups or not."""
    assert redacted(f"Pay with {card}, please.") == f"Pay with {CARD}, please."


@pytest.mark.parametrize(
    "text",
    [
        "4111 1111 1111 1112",  # a wrong check digit
        "Call me at +47 22 12 34 56 78",
        "Order 20250509123456 of 2025-05-09",
        "I forgot my password yesterday",
        "The token is missing",
        "What is a secret: nothing",
        "sk-ating and hf_hub are words",
        "https://example.org/a:b@c and mail bob@example.org",
        "He has 12345678901234567890 followers",
        "pi is 3.14159265358979323846",
        "",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    """A memory that hides half of what was said is of no use."""
    assert redacted(text) == text


@pytest.mark.parametrize(
    "unit", ["4", "4 ", "a:", "-----BEGIN PRIVATE KEY-----", "password is ", "x://:", "sk-", "eyJ"]
)
def test_hostile_text_costs_what_its_length_costs(unit: str) -> None:
    """A megabyte of any of these ends within the time that a test may take."""
    assert redacted(unit * ((1 << 20) // len(unit)))


@pytest.mark.parametrize("redact", [True, False])
async def test_turns_are_redacted_before_they_are_handed_over(
    settings: Settings, database: Database, redact: bool
) -> None:
    """Where it is set; so that no table ever held the secret."""
    secret = SECRETS["github"]
    chosen = settings.model_copy(update={"redact": redact})
    async with Memory(chosen) as memory, memory.turn(MemoryScope.of("acme")) as turn:
        await turn.finish(f"use {secret}", f"I shall use {secret}.")
    row = await database.row("select query, answer from afterturn.turns")
    kept = KEY if redact else secret
    assert tuple(row) == (f"use {kept}", f"I shall use {kept}.")
