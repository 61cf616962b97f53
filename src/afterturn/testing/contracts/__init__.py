"""What a port must do, as pytest classes to derive from.

    class TestMyStore(StoreContract):
        @asynccontextmanager
        async def ports(self):
            async with MyStore() as store:
                yield StorePorts(
                    retrieval=store, writing=store, lifecycle=store, capture=store.capture
                )

`RetrievalContract` is for what can only be read, `StoreContract` for a store that is written,
flushed and erased as well, `ExtractorContract` for an extractor. Each is a list of single
promises and a state machine that compares a random story with a model of it; a failing story is
shown step by step. Every test makes up a root scope of its own, so a shared database will do.

Needs the extra `testing` (pytest and Hypothesis); no plugin of either is needed.
"""

import pytest

# So that a broken promise is shown with the values seen.
pytest.register_assert_rewrite(
    "afterturn.testing.contracts.extraction",
    "afterturn.testing.contracts.reading",
    "afterturn.testing.contracts.storing",
)

from afterturn.testing.contracts.extraction import ExtractorContract  # noqa: E402
from afterturn.testing.contracts.harness import ReadPorts, StorePorts  # noqa: E402
from afterturn.testing.contracts.reading import RetrievalContract  # noqa: E402
from afterturn.testing.contracts.storing import (  # noqa: E402
    StoreContract,
    StoreReadingContract,
)

__all__ = [
    "ExtractorContract",
    "ReadPorts",
    "RetrievalContract",
    "StoreContract",
    "StorePorts",
    "StoreReadingContract",
]
