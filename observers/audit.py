"""The built-in observer that writes the audit topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from observers.audit_producer import AuditProducer, check_producer_settings, producer_settings
from observers.errors import ObserverError
from observers.event_observer import DEFAULT_TOPIC, Destination, EventObserver
from observers.kafka_admin import KafkaAdmin, client_id_of


class AuditObserver(EventObserver):
    """Emits the audit's events to a topic."""

    spool_setting = "audit.spool.path"

    def _find_destination(self, configs: Mapping[str, Any], admin: KafkaAdmin) -> Destination:
        """``audit``: the settings of a ``Destination``, ``topic``, ``producer`` (librdkafka settings) and
        ``authenticator`` (signs records), all optional."""
        audit: Mapping[str, Any] = configs["audit"]
        settings = producer_settings(configs["internal"], audit.get("producer", {}), client_id_of(configs["broker.id"]))
        check_producer_settings(settings)
        destination = Destination(
            lambda on_settled: AuditProducer(
                admin, settings, audit.get("topic", DEFAULT_TOPIC), on_settled, audit.get("authenticator")
            ),
            audit,
        )
        check_sizes(settings, destination)
        return destination


def check_sizes(producer_settings: Mapping[str, Any], destination: Destination) -> None:
    """Raise ObserverError where a record may be larger than the spool."""
    record, spool = int(producer_settings["message.max.bytes"]), destination.spool
    if spool is not None and record > spool.max_bytes:
        allowed = f"up to audit.spool.max.bytes, {spool.max_bytes}"
        raise ObserverError(f"audit.producer: message.max.bytes is {record} (allowed: {allowed})")
