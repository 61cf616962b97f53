"""Reading a file: its JSON, and which format it is of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, Literal, get_args

from afterturn.importing.conversation import Defect, Reading
from afterturn.importing.locomo import looks_like_locomo, read_locomo

Format = Literal["auto", "locomo"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)


def read_file(file: Path, format_name: Format = "auto") -> Reading:
    """What the file holds. Never raises: what cannot be read is a defect with its place.

    The whole file is in memory meanwhile, several times its size.
    """
    try:
        document = json.loads(file.read_text("utf-8-sig"))
    except UnicodeDecodeError as error:
        return _unreadable(f"byte {error.start + 1}", "not UTF-8")
    except json.JSONDecodeError as error:
        return _unreadable(f"line {error.lineno}, column {error.colno}", f"not JSON: {error.msg}")
    except RecursionError:
        return _unreadable("", "not a conversation: nested too deeply")
    except OSError as error:
        return _unreadable("", f"cannot be read: {error.strerror}")
    if format_name == "auto" and not looks_like_locomo(document):
        return _unreadable(
            "",
            "not of a known format: LoCoMo is a list of objects, each with a `sample_id` "
            "and a `conversation`",
        )
    return read_locomo(document)


def _unreadable(place: str, reason: str) -> Reading:
    return Reading(defects=[Defect(place, reason)])
