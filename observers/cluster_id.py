"""Asks the cluster for its id until it answers, on a thread of its own."""

from __future__ import annotations

import threading

import structlog

from observers.kafka_admin import KafkaAdmin
from observers.record_sender import FIRST_RETRY_DELAY, LAST_RETRY_DELAY

log = structlog.get_logger("observers")


class ClusterId:
    """The id of the Kafka cluster. ``value`` is empty until the cluster has answered."""

    def __init__(self, admin: KafkaAdmin) -> None:
        self.value = ""
        self._admin = admin
        self._closing = threading.Event()

    def start(self) -> None:
        """Start the thread, which ends with the answer."""
        threading.Thread(target=self._run, name="audit cluster id", daemon=True).start()

    def close(self) -> None:
        """Stop asking. A call that is under way is not waited for."""
        self._closing.set()

    def _run(self) -> None:
        pause = FIRST_RETRY_DELAY
        while not self.value and not self._closing.is_set():
            try:
                self.value = self._admin.fetch_cluster_id()
            except Exception as error:
                log.info("audit_cluster_id_unavailable", error=type(error).__name__, retry_in=pause)
            if not self.value:
                self._closing.wait(pause)
                pause = min(2 * pause, LAST_RETRY_DELAY)
