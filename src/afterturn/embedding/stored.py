"""The model whose vectors a database holds, and whether it is that of a process."""

from __future__ import annotations

from typing import Final, NamedTuple

from afterturn.database import Connection
from afterturn.errors import ConfigurationError
from afterturn.ports import EmbeddingProvider

_STORED: Final = """
select embedder_model as model_id, embedder_dim as dim from afterturn.installation
where embedder_model is not null
"""


class EmbedderIdentity(NamedTuple):
    """What tells vectors apart: those of two identities cannot be compared."""

    model_id: str
    dim: int

    @classmethod
    def of(cls, embedder: EmbeddingProvider) -> EmbedderIdentity:
        """What the embedder says of itself."""
        return cls(embedder.model_id, embedder.dim)

    def __str__(self) -> str:
        return f"{self.model_id} with {self.dim} dimensions"


async def stored_embedder(connection: Connection) -> EmbedderIdentity | None:
    """Whose vectors the database holds; None before the first ones."""
    row = await connection.fetchrow(_STORED)
    return None if row is None else EmbedderIdentity(**row)


def require_same(ours: EmbedderIdentity | None, stored: EmbedderIdentity | None) -> None:
    """Raise `ConfigurationError` where a process would make vectors that nobody can compare."""
    if ours is not None and stored is not None and ours != stored:
        raise ConfigurationError(
            "The stored vectors are of another embedder",
            detail=f"stored {stored}, configured {ours}",
            hint="Set AFTERTURN_EMBEDDER back, or run `afterturn reembed`.",
        )
