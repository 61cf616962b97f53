"""The table of `docs/settings.md`, made from the settings themselves.

Run `python -m tests.foundation.settings_table` to write it anew after a setting changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from afterturn.settings import PREFIX, Settings

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
_BEGIN: Final = "<!-- begin of the table made by tests/foundation/settings_table.py -->"
_END: Final = "<!-- end of the table -->"


def table() -> str:
    """One row a setting: variable, default, meaning."""
    rows = [
        f"| `{PREFIX}{name.upper()}` | {_default(field)} | {field.description} |"
        for name, field in Settings.model_fields.items()
    ]
    return "\n".join(["| variable | default | meaning |", "|---|---|---|", *rows])


def documented() -> str:
    """The table as the page has it."""
    return _parts()[1].strip("\n")


def write() -> None:
    """Put the table into the page."""
    before, _, after = _parts()
    PAGE.write_text(f"{before}{_BEGIN}\n{table()}\n{_END}{after}", "utf-8")


def _parts() -> tuple[str, str, str]:
    before, _, rest = PAGE.read_text("utf-8").partition(_BEGIN)
    inside, _, after = rest.partition(_END)
    return before, inside, after


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "in the user's data directory"
    if field.default is None or field.default == "":
        return "not set"
    assert not isinstance(field.default, SecretStr)
    shown = f"{field.default:.10g}" if isinstance(field.default, float) else str(field.default)
    return f"`{shown}`"


if __name__ == "__main__":
    write()
