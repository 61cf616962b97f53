"""Every error that afterturn raises on purpose, under one root.

    AfterturnError
    ├── MemoryUnavailable        the store is out of reach: trying again may help
    │   └── ErasePending         an erase of the scope stands; try again when it is done
    ├── MemoryContractError      the request cannot be honoured as it was put
    │   ├── StaleTurn            the turn began before an erase that covers it
    │   ├── ErasedScope          a write that vouches for no erase met a scope that had one
    │   └── NotMigrated          the database has no afterturn tables (or too old ones)
    ├── ScopeViolation           a row of a scope that the reader may not see
    └── ConfigurationError       settings or parts that do not fit together

Messages carry ids and values of settings, never memory text and never a driver's detail.
"""

from __future__ import annotations


class AfterturnError(Exception):
    """The root: `message` says what happened, `detail` the values seen, `hint` what to do."""

    def __init__(self, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message, detail, hint)
        self.message = message
        self.detail = detail
        self.hint = hint

    def __str__(self) -> str:
        parts = [self.message]
        if self.detail:
            parts.append(f"({self.detail})")
        text = " ".join(parts)
        return f"{text}. {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.detail, self.hint))


def _rebuild(kind: type[AfterturnError], message: str, detail: str, hint: str) -> AfterturnError:
    return kind(message, detail=detail, hint=hint)


class MemoryUnavailable(AfterturnError):
    """The store cannot be reached or did not answer in time; nothing is known to be wrong."""


class ErasePending(MemoryUnavailable):
    """An erase that covers the scope was requested and has not completed yet."""


class MemoryContractError(AfterturnError):
    """The request cannot be honoured as it was put; repeating it unchanged will not help."""


class StaleTurn(MemoryContractError):
    """The turn began before an erase that covers its scope, so it may not be written."""


class ErasedScope(MemoryContractError):
    """A write without a token met a scope that was erased before; capture a token first."""


class NotMigrated(MemoryContractError):
    """The database lacks afterturn's tables, or has those of an older release."""


class ScopeViolation(AfterturnError):
    """A source returned a row of a scope that the reader may not see."""


class ConfigurationError(AfterturnError):
    """Settings, parts or versions that do not fit together."""
