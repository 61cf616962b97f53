"""The base of every public model: frozen, closed, and silent about the values it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from afterturn.errors import MemoryContractError


class Model(BaseModel):
    """A frozen pydantic model. Inputs never appear in its errors: they could be memory text."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, arbitrary_types_allowed=False
    )

    @classmethod
    def trusted(cls, **values: Any) -> Self:
        """An instance of values that were validated before, all of its fields.

        What `model_construct` does without looking for defaults, in a third of the time or less:
        that counts where a reader makes dozens for an answer.
        """
        made = _new(cls)
        _set_values(made, values)
        _set_names(made, set(values))
        _set_extra(made, None)
        _set_private(made, None)
        return made


# What a pydantic model holds. `object.__setattr__` would look each of them up, in twice the time.
_new: Final = object.__new__
_set_values, _set_names, _set_extra, _set_private = (
    BaseModel.__dict__[slot].__set__
    for slot in (
        "__dict__",
        "__pydantic_fields_set__",
        "__pydantic_extra__",
        "__pydantic_private__",
    )
)


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """What pydantic refuses of a method's arguments, as our own error that names the first."""
    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise MemoryContractError(
            f"The {what} cannot be used as it was put", detail=f"{name}: {first['msg']}"
        ) from None
