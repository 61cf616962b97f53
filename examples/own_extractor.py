"""An extractor and a policy of your own; see docs/how-to/your-own-model.md.

AFTERTURN_EXTRACTOR=own_extractor:Birthdays afterturn up
AFTERTURN_EXTRACTOR=own_extractor:make afterturn up        # a model, with this policy
"""

# --8<-- [start:extractor]
from afterturn import ExtractionRequest, ExtractionResult, MemoryLayer, MemoryRecord, MemoryScope

# --8<-- [end:extractor]
from afterturn.extraction.policy import FactPolicy
from afterturn.extraction.service import MemoryExtractionService
from afterturn.settings import Settings


# --8<-- [start:policy]
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


# --8<-- [start:extractor]
class Birthdays:
    """Keeps what is said of birthdays, the latest as the current fact."""

    async def extract(self, request: ExtractionRequest) -> ExtractionResult:
        """At most one fact a turn."""
        (turn,) = request.turns
        if not turn.query or "my birthday is" not in turn.query:
            return ExtractionResult()
        fact = MemoryRecord(
            record_id=f"birthday:{turn.turn_id}",
            text=turn.query,
            scope_path=turn.scope.path,
            layer=MemoryLayer.SEMANTIC,
            origin="birthdays",
            metadata={"subject": "the user", "attribute": "birthday"},
        )
        return ExtractionResult(records=(fact,))


# --8<-- [end:extractor]
