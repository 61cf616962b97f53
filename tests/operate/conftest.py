"""Short directories and a broker for each test, as the tests of the fleet have them."""

from tests.fleet.conftest import broker, directory

__all__ = ["broker", "directory"]
