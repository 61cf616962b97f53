"""An extractor of your own; see docs/how-to/your-own-model.md.

AFTERTURN_EXTRACTOR=own_extractor:Birthdays afterturn up
"""

# --8<-- [start:extractor]
from afterturn import ExtractionRequest, ExtractionResult, MemoryLayer, MemoryRecord


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
