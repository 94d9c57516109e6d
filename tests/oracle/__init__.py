"""Pure Python that does what compiled modules of the product do, for property tests and fuzzing to compare with."""
