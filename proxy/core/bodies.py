"""Which bodies the walkers read (``proxy.compiled.walk``), and what bounds the memory that reading one takes."""

from __future__ import annotations

PRODUCE_VERSIONS = range(14)
FETCH_VERSIONS = range(19)
SHARE_FETCH_VERSIONS = range(3)

MAX_CARRY = 131_072
"""Most bytes kept from one piece to the next; the longest element that is read as a whole holds two 32 KiB strings."""

MAX_PARTITIONS = 200_000
"""Most partitions of one message; one with more counts as malformed. Facts take up to ``budget.PARTITION`` bytes a
partition, and a hostile frame of null record sets needs six: they are charged as they are read, chunk by chunk."""

MAX_ABORTED_TRANSACTIONS = 65_536
"""Most aborted transactions of one partition of a FetchResponse that are kept to leave out their records."""
