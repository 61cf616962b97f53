"""Where facts may go: their scope and layer, decided by the adopter's code and never by a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from afterturn.records import MemoryLayer
from afterturn.scope import MemoryScope
from afterturn.settings import Settings

LAYERS: Final = (
    MemoryLayer.SEMANTIC,
    MemoryLayer.PROCEDURAL,
    MemoryLayer.PROSPECTIVE,
    MemoryLayer.EPISODIC,
)


@dataclass(frozen=True, slots=True)
class FactPolicy:
    """The scope and layer of facts. Subclass it for rules of your own.

    `level` is the ancestor of the turn's scope that facts go to (1: the root), where the turn has
    one that high; `None`: the turn's own scope. `layers` are those allowed; what is proposed for
    another goes to the first.
    """

    level: int | None = None
    layers: tuple[MemoryLayer, ...] = LAYERS

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """That of `AFTERTURN_FACT_LEVEL` and `AFTERTURN_FACT_LAYERS`."""
        layers = tuple(MemoryLayer(name) for name in settings.fact_layers.split(","))
        return cls(settings.fact_level, layers)

    def scope(self, turn_scope: MemoryScope, _layer: MemoryLayer) -> MemoryScope:
        """The scope of a fact: the turn's or an ancestor; anything else is refused later."""
        if self.level is None or self.level >= turn_scope.depth:
            return turn_scope
        return turn_scope.ancestor(self.level)

    def layer(self, proposed: object) -> MemoryLayer:
        """The layer of a fact that was proposed for one, which may be anything at all."""
        name = proposed.strip().lower() if isinstance(proposed, str) else ""
        return next((layer for layer in self.layers if layer.value == name), self.layers[0])
