"""A model whose facts go where you say; see docs/how-to/your-own-model.md.

AFTERTURN_EXTRACTOR=own_policy:make afterturn up
"""

# --8<-- [start:policy]
from afterturn import MemoryLayer, MemoryScope
from afterturn.extraction.policy import FactPolicy
from afterturn.extraction.service import MemoryExtractionService
from afterturn.settings import Settings


class OurPolicy(FactPolicy):
    """What is known of a user is known in all of their conversations."""

    def scope(self, turn_scope: MemoryScope, layer: MemoryLayer) -> MemoryScope:
        """`acme/alice` for facts learned in `acme/alice/chat-7`."""
        if layer == MemoryLayer.SEMANTIC and turn_scope.depth > 2:
            return turn_scope.ancestor(2)
        return turn_scope


def make() -> MemoryExtractionService:
    """The model of the settings, with this policy."""
    return MemoryExtractionService.from_settings(Settings.load(), policy=OurPolicy())
    # --8<-- [end:policy]
