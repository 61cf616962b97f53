"""The lock file: everything pinned with hashes, from no index in particular."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.operate.deployment import ROOT

LOCK = ROOT / "requirements.lock"
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


@pytest.fixture(scope="module")
def locked() -> dict[str, list[tuple[Requirement, int]]]:
    """Name → its pins (one for each marker), each with its number of hashes."""
    found: dict[str, list[tuple[Requirement, int]]] = {}
    for entry in re.split(r"\n(?=[a-z0-9])", LOCK.read_text("utf-8")):
        text = re.sub(r"(?m)^#.*$", "", entry).strip()
        if text:
            pin = Requirement(text.partition("\\")[0].strip())
            found.setdefault(canonicalize_name(pin.name), []).append((pin, len(HASH.findall(text))))
    return found


def test_no_index_is_named() -> None:
    """Neither a URL nor an option that would choose one: the installer's own settings count."""
    text = LOCK.read_text("utf-8")
    assert "://" not in text
    for option in ("index-url", "find-links", "trusted-host", "no-index"):
        assert f"--{option}" not in re.sub(r"(?m)^#.*$", "", text)
    assert "@" not in re.sub(r"(?m)^#.*$", "", text)


def test_every_package_is_pinned_with_hashes(
    locked: dict[str, list[tuple[Requirement, int]]],
) -> None:
    """One version, at least one hash."""
    assert len(locked) > 40
    for pins in locked.values():
        for pin, hashes in pins:
            assert re.fullmatch(r"==[^*]+", str(pin.specifier)), pin
            assert hashes > 0, pin


def test_what_the_package_asks_for_is_locked_as_it_asks(
    locked: dict[str, list[tuple[Requirement, int]]],
) -> None:
    """Each dependency, the model client and the build backend; what they need in turn, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    asked = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["openai"],
        *project["build-system"]["requires"],
    ]
    for line in asked:
        wanted = Requirement(line)
        pins = locked[canonicalize_name(wanted.name)]
        for pin, _ in pins:
            (exact,) = pin.specifier
            assert wanted.specifier.contains(Version(exact.version)), (line, pin)
    for name in locked:
        try:
            needs = requires(name) or []
        except PackageNotFoundError:
            continue
        for line in needs:
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                assert canonicalize_name(need.name) in locked, f"{name} needs {line}"
