"""What the tests of the foundation share with those of the schema."""

from tests.schema.conftest import empty_url

__all__ = ["empty_url"]
