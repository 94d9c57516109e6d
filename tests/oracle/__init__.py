"""Pure Python that does what compiled walkers and writers of events do, for tests and fuzzing to compare with."""
