"""The built-in observer that writes the audit topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from observers.audit_producer import AuditProducer, check_producer_settings, producer_settings
from observers.errors import ObserverError
from observers.event import ROLLUP_LEVEL, SCHEMA_FEATURE, SCHEMA_LEVEL
from observers.event_observer import DEFAULT_TOPIC, Destination, EventObserver
from observers.kafka_admin import KafkaAdmin, client_id_of

log = structlog.get_logger("observers")


class AuditObserver(EventObserver):
    """Emits the audit's events to a topic, at the level that the fleet has finalized."""

    spool_setting = "audit.spool.path"
    _is_limited = False  # whether the level in use is lower than the one that the mode needs

    def finalized_levels(self, levels: Mapping[str, int]) -> None:
        """Write no record above the level of ``observers.event.SCHEMA_FEATURE`` in use, see ``LevelObserver``."""
        if (level := levels.get(SCHEMA_FEATURE)) is None:
            return
        self._use_level(level)
        limited = level < self._level_of_mode
        if limited and not self._is_limited:
            log.info("audit_level_limited", feature=SCHEMA_FEATURE, in_use=level, wanted=self._level_of_mode)
        self._is_limited = limited

    def _find_destination(self, configs: Mapping[str, Any], admin: KafkaAdmin) -> Destination:
        """``audit``: the settings of a ``Destination``, ``topic``, ``producer`` (librdkafka settings) and
        ``authenticator`` (signs records), all optional. ``features``: whether the fleet has finalized levels. With them
        records are of the lowest level until ``finalized_levels`` is called."""
        audit: Mapping[str, Any] = configs["audit"]
        settings = producer_settings(configs["internal"], audit.get("producer", {}), client_id_of(configs["broker.id"]))
        check_producer_settings(settings)
        destination = Destination(
            lambda on_settled: AuditProducer(
                admin, settings, audit.get("topic", DEFAULT_TOPIC), on_settled, audit.get("authenticator")
            ),
            audit,
            SCHEMA_LEVEL if configs.get("features") else ROLLUP_LEVEL,
        )
        check_sizes(settings, destination)
        return destination


def check_sizes(producer_settings: Mapping[str, Any], destination: Destination) -> None:
    """Raise ObserverError where a record may be larger than the spool."""
    record, spool = int(producer_settings["message.max.bytes"]), destination.spool
    if spool is not None and record > spool.max_bytes:
        allowed = f"up to audit.spool.max.bytes, {spool.max_bytes}"
        raise ObserverError(f"audit.producer: message.max.bytes is {record} (allowed: {allowed})")
