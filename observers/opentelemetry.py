"""The built-in observer that sends the audit's events to an OpenTelemetry collector, as log records by OTLP/HTTP."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from observers.cluster_id import ClusterId
from observers.errors import ObserverError
from observers.event_observer import Destination, EventObserver
from observers.http_connection import HttpConnection
from observers.kafka_admin import KafkaAdmin
from observers.otlp_encoding import LogsEncoder
from observers.otlp_exporter import OtlpExporter
from observers.otlp_settings import OtlpSettings, check_settings
from observers.record_sender import DeliveryCallback

OBSERVER_NAME = "observers.opentelemetry:OpenTelemetryLogsObserver"
AUDIT_OBSERVER_NAME = "observers.audit:AuditObserver"


class OpenTelemetryLogsObserver(EventObserver):
    """Emits the audit's events as OpenTelemetry log records.

    Finalized levels do not change them: the jobs that they protect do not read a collector.
    """

    spool_setting = "spool.path"
    _cluster_id: ClusterId | None = None

    def close(self, timeout: float) -> None:
        """As every ``EventObserver``."""
        super().close(timeout)
        if self._cluster_id is not None:
            self._cluster_id.close()

    def _find_destination(self, configs: Mapping[str, Any], admin: KafkaAdmin) -> Destination:
        """``settings``: those of ``otlp_settings``. ``config``: the whole configuration, with secrets as ``***``."""
        shown = configs.get("config", {})
        own = shown.get("observers", {}).get(OBSERVER_NAME, {})
        settings = check_settings(configs["settings"], shows_headers=own.get("headers", "***") != "***")
        if AUDIT_OBSERVER_NAME in shown.get("observer.class.names", ()):
            _check_spools(settings.shared["spool.path"], configs["audit"].get("spool.path"))
        return Destination(
            lambda on_settled: self._make_exporter(settings, configs["sidecar.version"], admin, on_settled),
            settings.shared,
        )

    def _make_exporter(
        self, settings: OtlpSettings, version: str, admin: KafkaAdmin, on_settled: DeliveryCallback
    ) -> OtlpExporter:
        self._cluster_id = cluster_id = ClusterId(admin)
        cluster_id.start()
        encoding = [("content-encoding", "gzip")] if settings.compresses else []
        headers = [("content-type", "application/json"), ("user-agent", f"brokerside/{version}"), *encoding]
        return OtlpExporter(
            HttpConnection(settings.url, [*headers, *settings.headers], settings.timeout, settings.make_tls_context),
            LogsEncoder(settings.resource_attributes),
            on_settled,
            max_bytes=settings.max_queue_bytes,
            compresses=settings.compresses,
            get_cluster_id=lambda: cluster_id.value,
        )


def _check_spools(own: str, audit: str | None) -> None:
    """Raise ObserverError where both observers would send what they find in the same folder."""
    if own and audit and os.path.realpath(own) == os.path.realpath(audit):
        raise ObserverError(f"spool.path: {own!r} is audit.spool.path as well (allowed: a folder of its own)")
