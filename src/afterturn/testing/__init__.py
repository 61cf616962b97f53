"""For the tests of those who use afterturn.

`ReferenceMemory` stands in for `Memory` in unit tests. `afterturn.testing.contracts` says what a
port must do, as pytest classes to derive from; it needs the extra `testing`.
"""

from afterturn.testing.clock import SettableClock
from afterturn.testing.reference import ReferenceMemory

__all__ = ["ReferenceMemory", "SettableClock"]
