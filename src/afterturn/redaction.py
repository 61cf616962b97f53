"""What looks like a key, a password or a card number, taken out of a text before it is kept.

Known shapes only: a secret in plain words passes. Every expression is tried at a bounded number of
places and looks at a bounded length, so that a long text costs what its length costs.
"""

from __future__ import annotations

import re
from typing import Final

KEY: Final = "[redacted key]"
PASSWORD: Final = "[redacted password]"  # noqa: S105 - what stands in its place
CARD: Final = "[redacted card number]"

_PEM: Final = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:[^-]|-(?!-)){0,20000}"
    r"(?:-----END [A-Z ]{0,40}-----)?"
)
# Prefixes by which issuers make their keys known, and what follows.
_KEYS: Final = re.compile(
    r"\b(?:(?:sk|pk|rk)[-_](?:proj|ant|live|test|or|svcacct|admin)?[-_]?[A-Za-z0-9][\w-]{18,250}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}\b|AIza[\w-]{35}"
    r"|gh[pousr]_[A-Za-z0-9]{30,250}|github_pat_\w{30,250}|glpat-[\w-]{20,100}"
    r"|xox[abeoprs]-[\w-]{10,250}|hf_[A-Za-z0-9]{30,100}|npm_[A-Za-z0-9]{30,100}"
    r"|pypi-[\w-]{50,300}|dop_v1_[a-f0-9]{60,70}|SG\.[\w-]{20,30}\.[\w-]{40,50}"
    r"|eyJ[\w-]{10,2000}\.eyJ[\w-]{10,4000}\.[\w-]{10,1000})"
)
_BEARER: Final = re.compile(r"\b(?P<what>[Bb]earer|[Bb]asic) (?P<secret>[\w.~+/-]{16,2000}=*)")
_IN_URL: Final = re.compile(
    r"\b(?P<what>[a-z][a-z0-9+.-]{1,20}://[^\s:/@]{0,100}:)(?P<secret>[^\s/@]{1,200})(?=@)"
)
_NAMED: Final = re.compile(
    r"(?P<what>\b(?:\w{0,30}[_-])?(?:password|passwd|pwd|passphrase|secret|token|"
    r"api[_-]?key|access[_-]?key|private[_-]?key)[\"']?\s{0,3}(?:[:=]|\bis)\s{0,3}[\"']?)"
    r"(?P<secret>(?=[^\s\"']{0,100}[\d\W])[^\s\"',;]{6,200})",
    re.IGNORECASE,
)
_DIGITS: Final = re.compile(r"(?<![\d.,])[2-6]\d{3}(?:[ -]?\d){8,14}\d(?![\d])")


def redacted(text: str) -> str:
    """The text with known shapes of secrets replaced by what they were."""
    text = _PEM.sub(KEY, text)
    text = _KEYS.sub(KEY, text)
    text = _BEARER.sub(rf"\g<what> {KEY}", text)
    text = _IN_URL.sub(rf"\g<what>{PASSWORD}", text)
    text = _NAMED.sub(rf"\g<what>{PASSWORD}", text)
    return _DIGITS.sub(_card, text)


def _card(match: re.Match[str]) -> str:
    digits = [int(digit) for digit in match[0] if digit.isdigit()]
    return CARD if 13 <= len(digits) <= 19 and _luhn(digits) else match[0]


def _luhn(digits: list[int]) -> bool:
    """Whether the last digit is the check digit of the others (ISO/IEC 7812-1, annex B)."""
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0
