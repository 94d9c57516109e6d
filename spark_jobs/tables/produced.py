"""The table ``produced``: every batch of records written to a topic of a declared mirror, on either side. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from spark_jobs.events import DAY_US, PRODUCE

if TYPE_CHECKING:  # executors have no pydantic
    from spark_jobs.definitions.mirror import Mirror

DUPLICATE_SEQUENCE_NUMBER = 46
"""With this error the broker reports that it already has the records."""

Row = list[Any]

MirrorSide = tuple[str, str, str]
"""Topics of one side of a mirror: cluster, prefix of their names, and a pattern of the rest."""


def mirror_sides(mirrors: Sequence[Mirror]) -> tuple[MirrorSide, ...]:
    """Return both sides of each of ``mirrors``."""
    sources = [(mirror.source_cluster_id, "", mirror.topics) for mirror in mirrors]
    return (*sources, *[(mirror.target_cluster_id, mirror.prefix, mirror.topics) for mirror in mirrors])


class ProducedBatches:
    """Finds the batches of the topics of mirrors."""

    def __init__(self, sides: Sequence[MirrorSide]) -> None:
        self._clusters = frozenset(cluster for cluster, _, _ in sides)
        patterns = [(cluster, prefix, re.compile(f"^(?:{topics})$")) for cluster, prefix, topics in sides]

        @lru_cache(maxsize=10_000)
        def is_mirrored(cluster_id: str, topic: str) -> bool:
            return any(
                cluster_id == cluster and topic.startswith(prefix) and names.search(topic[len(prefix) :])
                for cluster, prefix, names in patterns
            )

        self._is_mirrored = is_mirrored

    def rows_of_request(self, cluster_id: str, broker_id: int, event: Any) -> Iterator[Row]:
        """Yield a row for each partition of a request."""
        if event.api_key != PRODUCE or cluster_id not in self._clusters:
            return
        for part in event.topics:
            if part.records <= 0 or not self._is_mirrored(cluster_id, part.topic):
                continue
            outcome = "acknowledged" if event.outcome == "answered" else "unconfirmed"
            if part.error_code not in (0, DUPLICATE_SEQUENCE_NUMBER):
                outcome = "rejected"
            batch = (part.producer_id, part.producer_epoch, part.base_sequence, part.base_offset)
            of_topic = (cluster_id, broker_id, part.topic, part.partition)
            yield _row(event, event.ts_request, of_topic, batch, outcome, part.records, part.bytes)

    def rows_of_rollup(self, cluster_id: str, broker_id: int, event: Any) -> Iterator[Row]:
        """Yield a row for each topic and outcome of a rollup."""
        if event.api_key != PRODUCE or cluster_id not in self._clusters:
            return
        for part in event.per_topic:
            if not self._is_mirrored(cluster_id, part.topic):
                continue
            of_topic = (cluster_id, broker_id, part.topic, None)
            for outcome, records, size in (
                ("acknowledged", part.records, part.bytes),
                ("unconfirmed", part.unconfirmed_records, part.unconfirmed_bytes),
                ("rejected", part.rejected_records, part.rejected_bytes),
            ):
                if records > 0:
                    yield _row(event, event.minute, of_topic, (None,) * 4, outcome, records, size)


def _row(
    event: Any, at: int, of_topic: tuple[Any, ...], batch: tuple[Any, ...], outcome: str, records: int, size: int
) -> Row:
    return [at // DAY_US, at, *of_topic, event.principal, event.client_id, *batch, outcome, records, size]
