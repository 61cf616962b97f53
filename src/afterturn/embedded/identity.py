"""As whom PostgreSQL runs. It refuses uid 0, so root has to be somebody else for it.

`user`     an ordinary user: nothing to do
`userns`   root, first way: a user namespace whose only mapping is an unprivileged uid → us. The
           server sees that uid, the files stay root's
`setuid`   root, second way, where namespaces are refused (as in many containers): really become
           that account; its data and sockets then belong to it

No account is ever created.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, cast, get_args

from afterturn.errors import ConfigurationError
from afterturn.processes import Launch, spawn

IdentityKind = Literal["user", "userns", "setuid"]
MODE_VARIABLE: Final = "AFTERTURN_ROOT_MODE"

_CLONE_NEWUSER = 0x10000000
_PREFERRED = ("postgres", "daemon", "nobody")
_LIBC = ctypes.CDLL(None, use_errno=True)  # loaded before any fork


@dataclass(frozen=True)
class Identity:
    """The uid and gid that PostgreSQL sees itself under; who owns its files follows from `kind`."""

    kind: IdentityKind
    uid: int
    gid: int

    @property
    def account(self) -> tuple[int, int] | None:
        """Whom the data must belong to, when not to us."""
        return (self.uid, self.gid) if self.kind == "setuid" else None

    def applied_to(self, launch: Launch) -> Launch:
        """`launch`, but as this identity."""
        if self.kind == "setuid":
            return replace(launch, account=(self.uid, self.gid))
        if self.kind == "userns":
            outside_gid = os.getegid()
            return replace(
                launch, in_child=lambda: _enter_namespace(self.uid, self.gid, outside_gid)
            )
        return launch

    def can(self, test: str, path: Path) -> bool:
        """Whether it passes `test` of the shell (`-x`, `-r`) on a path, all parents included."""
        launch = self.applied_to(Launch(cwd="/"))
        try:
            process = spawn(["/bin/sh", "-c", f'test {test} "$1"', "sh", path], launch)
            return process.wait(timeout=20) == 0
        except (OSError, subprocess.SubprocessError):
            return False


def choose_identity() -> Identity:
    """How to run PostgreSQL here. Raises `ConfigurationError` for a root without other accounts."""
    if os.geteuid() != 0:
        return Identity("user", os.geteuid(), os.getegid())
    account = _unprivileged_account()
    contained = Identity("userns", account.pw_uid, account.pw_gid)
    forced = os.environ.get(MODE_VARIABLE, "")
    if forced and forced not in get_args(IdentityKind)[1:]:
        raise ConfigurationError(
            f"{MODE_VARIABLE} is unknown", detail=forced, hint="Use userns or setuid, or unset it."
        )
    if forced:
        return replace(contained, kind=cast(IdentityKind, forced))
    if sys.platform == "linux" and contained.can("-d", Path("/")):
        return contained
    return replace(contained, kind="setuid")


def _unprivileged_account() -> pwd.struct_passwd:
    """One with an entry in passwd, where initdb looks the name up."""
    accounts = {entry.pw_name: entry for entry in pwd.getpwall() if entry.pw_uid != 0}
    for name in (*_PREFERRED, *accounts):
        if name in accounts:
            return accounts[name]
    raise ConfigurationError(
        "PostgreSQL refuses to run as root and there is no other account",
        hint="Run as an ordinary user, or set AFTERTURN_DATABASE_URL to a server of your own.",
    )


def _enter_namespace(uid: int, gid: int, outside_gid: int) -> None:
    """In the child: become `uid` inside a new user namespace that maps only it, to root."""
    if _LIBC.unshare(_CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} 0 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {outside_gid} 1")
