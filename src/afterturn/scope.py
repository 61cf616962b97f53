"""Scopes: paths of one to eight segments, root first, that say whose memory it is.

A path is `v1/` and the percent-encoded segments joined by `/`, so a segment may hold any text
and a prefix of complete segments is an ancestor. `scope_from_path` is the strict inverse.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final, NoReturn, Self
from urllib.parse import quote, unquote

from pydantic import BaseModel, ConfigDict, field_validator

from afterturn.errors import MemoryContractError

MAX_DEPTH: Final = 8
SEGMENT_CHARACTERS_MAX: Final = 200
PATH_BYTES_MAX: Final = 2_000
PATH_VERSION: Final = "v1"
_PREFIX: Final = PATH_VERSION + "/"
_BROKEN_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


class MemoryScope(BaseModel):
    """One scope. Build it with `MemoryScope.of("acme", "alice")`; equal when the paths are equal.

    Segments are normalised to NFC. Raises `MemoryContractError` for an empty scope, more than
    `MAX_DEPTH` segments, a segment that is empty, too long, or holds control characters or
    surrogates, and for an encoded path over `PATH_BYTES_MAX` bytes (it is an index key).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    segments: tuple[str, ...]

    @field_validator("segments", mode="before")
    @classmethod
    def _canonical(cls, value: object) -> tuple[str, ...]:
        if not isinstance(value, (tuple, list)) or not value:
            raise MemoryContractError(
                "A scope needs at least one segment",
                hint='Name it root first, for example MemoryScope.of("acme", "alice").',
            )
        if len(value) > MAX_DEPTH:
            raise MemoryContractError(
                "A scope is too deep", detail=f"{len(value)} segments, at most {MAX_DEPTH}"
            )
        segments = tuple(_segment(s, at) for at, s in enumerate(value, start=1))
        path_bytes = len(_encode(segments))
        if path_bytes > PATH_BYTES_MAX:
            raise MemoryContractError(
                "A scope's encoded path is too long",
                detail=f"{path_bytes} bytes, at most {PATH_BYTES_MAX}",
                hint="Use shorter segments, for example ids instead of names.",
            )
        return segments

    @classmethod
    def of(cls, *segments: str) -> Self:
        """The scope with these segments, root first."""
        return cls(segments=segments)

    @property
    def path(self) -> str:
        """The canonical path, for example `v1/acme/alice`."""
        # Not kept on the model: a copy with other segments would take it along.
        return _encode(self.segments)

    @property
    def stored_path(self) -> str:
        """The path as tables hold it: with a trailing slash, so that a prefix is an ancestor."""
        return self.path + "/"

    @property
    def depth(self) -> int:
        """How many segments, 1 to `MAX_DEPTH`."""
        return len(self.segments)

    @property
    def root(self) -> MemoryScope:
        """The scope of the first segment alone."""
        return self.ancestor(1)

    def ancestor(self, level: int) -> MemoryScope:
        """The first `level` segments (1 is the root, `depth` is the scope itself)."""
        if not isinstance(level, int) or not 1 <= level <= self.depth:
            shown = level if isinstance(level, int) else type(level).__name__
            raise MemoryContractError(
                "There is no ancestor at this level",
                detail=f"level {shown}, the scope has {self.depth}",
            )
        return MemoryScope(segments=self.segments[:level])

    def child(self, segment: str) -> MemoryScope:
        """The scope one level below."""
        return MemoryScope(segments=(*self.segments, segment))

    def covers(self, other: MemoryScope) -> bool:
        """Whether `other` is this scope or lies under it, by complete segments."""
        return checked_scope(other).segments[: self.depth] == self.segments

    def __str__(self) -> str:
        return self.path

    def __hash__(self) -> int:
        return hash(self.segments)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryScope) and other.segments == self.segments


def checked_scope(scope: object) -> MemoryScope:
    """The scope itself; anything else, a path or a tuple among them, is refused by its type."""
    if not isinstance(scope, MemoryScope):
        raise MemoryContractError(
            "A scope must be a MemoryScope",
            detail=f"got {type(scope).__name__}",
            hint='Name it root first: MemoryScope.of("acme", "alice").',
        )
    return scope


def scope_from_path(path: str) -> MemoryScope:
    """The scope whose `.path` this is; anything that is not exactly canonical is refused."""
    if not isinstance(path, str) or not path.startswith(_PREFIX):
        _refused(path)
    scope = MemoryScope(segments=tuple(_decode(s) for s in path[len(_PREFIX) :].split("/")))
    if scope.path != path:
        raise MemoryContractError(
            "A scope path is not canonical", detail=f"got {_shown(path)}, expected {scope.path}"
        )
    return scope


def scope_from_stored_path(stored: str) -> MemoryScope:
    """The scope whose `.stored_path` this is."""
    return scope_from_path(stored.removesuffix("/"))


def scope_from_command_line(text: str) -> MemoryScope:
    """The scope written `acme/alice`, each segment percent-encoded where it needs to be.

    A path as it is printed, `v1/acme/alice`, is taken as well; so a root that is itself called `v1`
    is written `v1/v1/…`.
    """
    return MemoryScope(segments=tuple(_decode(s) for s in text.removeprefix(_PREFIX).split("/")))


def covering_paths(path: str) -> tuple[str, ...]:
    """The paths of the scope's ancestors and of itself, root first."""
    return _covering_paths(path if isinstance(path, str) else _refused(path))


@lru_cache(maxsize=4_096)
def _covering_paths(path: str) -> tuple[str, ...]:
    scope = scope_from_path(path)
    return tuple(scope.ancestor(level).path for level in range(1, scope.depth + 1))


def _refused(path: object) -> NoReturn:
    raise MemoryContractError(
        "Not a scope path of this version",
        detail=f"expected {_PREFIX}…, got {_shown(path)}",
    )


def _segment(segment: object, at: int) -> str:
    if not isinstance(segment, str):
        raise MemoryContractError(
            "A scope segment must be text", detail=f"segment {at} is {type(segment).__name__}"
        )
    text = unicodedata.normalize("NFC", segment)
    if not text:
        raise MemoryContractError("A scope segment is empty", detail=f"segment {at}")
    if len(text) > SEGMENT_CHARACTERS_MAX:
        raise MemoryContractError(
            "A scope segment is too long",
            detail=f"segment {at}, {_shown(text)}: {len(text)} characters, "
            f"at most {SEGMENT_CHARACTERS_MAX}",
        )
    for character in text:
        if unicodedata.category(character) in {"Cc", "Cs"}:
            raise MemoryContractError(
                "A scope segment holds a control character or a lone surrogate",
                detail=f"segment {at}, {_shown(text)}: U+{ord(character):04X}",
            )
    return text


@lru_cache(maxsize=4_096)
def _encode(segments: tuple[str, ...]) -> str:
    encoded = (quote(s, safe="") for s in segments)
    return _PREFIX + "/".join(e.replace(".", "%2E") if e in {".", ".."} else e for e in encoded)


def _decode(segment: str) -> str:
    if _BROKEN_ESCAPE.search(segment):
        raise MemoryContractError(
            "A scope segment has a % without two hexadecimal digits",
            detail=_shown(segment),
            hint="A % itself is written %25.",
        )
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise MemoryContractError(
            "A scope segment is not percent-encoded UTF-8", detail=_shown(segment)
        ) from None


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "...'"
