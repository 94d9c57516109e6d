"""Pure Python that does what ``proxy/compiled/items.pxi`` does, for tests and fuzzing to compare with."""
