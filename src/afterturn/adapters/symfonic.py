"""Scopes of symfonic-core (9.12) and of afterturn, translated into each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from afterturn.errors import ConfigurationError, MemoryContractError
from afterturn.scope import MAX_DEPTH, MemoryScope

KINDS: Final = ("tenant", "sub_tenant", *(f"level_{level}" for level in range(3, MAX_DEPTH + 1)))
"""The kinds of levels, root first. The first two are those that symfonic gives to a scope made of
`tenant_id` and `sub_tenant_id`, so memories written that way are found."""

_DELIMITER: Final = "\x1f"


class TenantScopes:
    """`scope_of` and `path_of` for `LegacyRetrievalPort` over symfonic's `TenantScope`.

    A segment is the id of a level; `kinds` are the kinds of the levels, root first, which symfonic
    writes into its paths and which must be those that the memories were written with.
    """

    def __init__(self, kinds: Sequence[str] = KINDS) -> None:
        if not kinds or len(set(kinds)) != len(kinds) or any(_DELIMITER in k for k in kinds):
            raise ConfigurationError(
                "The kinds of a symfonic scope must be different names",
                detail=f"got {[ascii(kind)[:40] for kind in kinds]}",
            )
        self._kinds = tuple(kinds)

    def scope_of(self, scope: MemoryScope) -> Any:
        """The `TenantScope` of a scope. Raises `MemoryContractError` where symfonic has none."""
        if scope.depth > len(self._kinds):
            raise MemoryContractError(
                "The scope is deeper than the kinds of levels that were given",
                detail=f"{scope.depth} segments, {len(self._kinds)} kinds",
            )
        if not all(segment.strip() for segment in scope.segments):
            raise MemoryContractError(
                "symfonic has no scope with a blank segment", detail=scope.path
            )
        levels, tenant_scope = _symfonic()
        pairs = zip(self._kinds, scope.segments, strict=False)
        return tenant_scope.from_path([levels(kind=kind, id=each) for kind, each in pairs])

    def path_of(self, path: str) -> MemoryScope:
        """The scope of a symfonic `scope_path`. Raises `MemoryContractError` for other kinds."""
        parts = path.split(_DELIMITER)
        kinds, ids = parts[::2], parts[1::2]
        if len(kinds) != len(ids) or tuple(kinds) != self._kinds[: len(kinds)]:
            raise MemoryContractError(
                "Not a symfonic path with these kinds of levels",
                detail=f"expected {', '.join(self._kinds)}",
                hint="Give TenantScopes the kinds that the memories were written with.",
            )
        return MemoryScope.of(*ids)


def _symfonic() -> tuple[Any, Any]:
    try:
        from symfonic.core.scope import ScopeLevel, TenantScope
    except ImportError:
        raise ConfigurationError(
            "symfonic-core is not installed", hint='Install "afterturn[symfonic]".'
        ) from None
    return ScopeLevel, TenantScope
