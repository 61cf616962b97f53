"""LoCoMo files for tests, made up of numbered messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def locomo(identity: str = "chat-1", messages: int = 4, sessions: int = 1) -> dict[str, Any]:
    """One conversation; Ann and Bob take turns, and every third message shows a picture."""
    body: dict[str, Any] = {"speaker_a": "Ann", "speaker_b": "Bob"}
    for number in range(1, sessions + 1):
        body[f"session_{number}_date_time"] = f"1:5{number % 10} pm on {number} May, 2023"
        body[f"session_{number}"] = [
            {
                "speaker": ("Ann", "Bob")[at % 2],
                "dia_id": f"D{number}:{at + 1}",
                "text": f"{identity} says {number}-{at + 1} about boats",
                **({"blip_caption": f"a photo of boat {at}"} if at % 3 == 0 else {}),
            }
            for at in range(messages)
        ]
    return {"sample_id": identity, "conversation": body, "qa": []}


def write(file: Path, *conversations: Any) -> Path:
    """A file with these conversations."""
    file.write_text(json.dumps(list(conversations)))
    return file
