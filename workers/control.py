"""Remote control: a worker answers questions and obeys nobody.

Whoever reaches the broker could otherwise stop workers or take them off their queues. Commands that
change something are taken out unless Flower is asked to do more than watch.
"""

from __future__ import annotations

from typing import Final

from celery.worker.control import Panel

# Flower asks for one when it starts, so that it need not wait for the next.
_HARMLESS: Final = frozenset({"heartbeat"})


def restrict() -> None:
    """Keep the commands that only ask; in the worker's main process, before it starts."""
    for name, about in list(Panel.meta.items()):
        if about.type == "control" and name not in _HARMLESS:
            del Panel.meta[name]
            for known_as in (name, about.alias):
                Panel.data.pop(known_as, None)
