"""The base of every public model: frozen, closed, and silent about the values it refuses."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """A frozen pydantic model. Inputs never appear in its errors: they could be memory text."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, arbitrary_types_allowed=False
    )
