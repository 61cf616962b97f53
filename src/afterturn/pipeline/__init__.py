"""The way of a turn: staged, recorded, extracted, embedded, published, erased."""
