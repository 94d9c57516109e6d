"""Sends records to an OpenTelemetry collector by OTLP/HTTP, one at a time, on a thread of its own.

A record that may be sent again is, for ever, with growing pauses; those behind it wait. What bounds them is memory.
"""

from __future__ import annotations

import random
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping

import structlog
from msgspec import Struct

from observers.http_connection import HttpConnection
from observers.otlp_encoding import LogsEncoder
from observers.otlp_response import ExportOutcome, outcome_of, retry_delay
from observers.record_sender import DeliveryCallback

MAX_RECORD_BYTES = 4 * 1024 * 1024
"""Bytes of one record. As a request it has four times as many, and a collector takes 20 MiB by default. Only a single
request with tens of thousands of partitions comes near."""

GZIP_LEVEL = 1
"""The fastest: higher ones make requests of events hardly smaller."""

log = structlog.get_logger("observers")


class _Queued(Struct, frozen=True, gc=False):
    value: bytes
    load: object


class OtlpExporter:
    """The ``RecordSender`` of one collector."""

    max_record_bytes = MAX_RECORD_BYTES

    def __init__(
        self,
        connection: HttpConnection,
        encoder: LogsEncoder,
        on_settled: DeliveryCallback,
        *,
        max_bytes: int,
        compresses: bool,
        get_cluster_id: Callable[[], str],
    ) -> None:
        """``compresses``: whether requests are sent in gzip, as the headers of ``connection`` then say."""
        self.ready = threading.Event()
        self.ready.set()
        self.problems: Mapping[str, str] = {}
        self.max_bytes = max_bytes
        self.queued = 0
        self.queued_bytes = 0
        self.records_delivered = 0
        self.bytes_delivered = 0
        self._connection = connection
        self._encoder = encoder
        self._on_settled = on_settled
        self._compresses = compresses
        self._get_cluster_id = get_cluster_id
        self._changed = threading.Condition()
        self._waiting: deque[_Queued] = deque()  # the first is being sent
        self._results: deque[tuple[_Queued, ExportOutcome]] = deque()  # not reported yet
        self._stopping = threading.Event()
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="audit otlp exporter", daemon=True)

    @property
    def cluster_id(self) -> str:
        """Id of the cluster, once it is known."""
        return self._get_cluster_id()

    def start(self) -> None:
        """Start the thread that sends."""
        self._thread.start()

    def send(self, value: bytes, load: object) -> bool:
        """Queue one record. Never waits. Return False if there is no room; then nothing is reported."""
        with self._changed:
            if self._stopping.is_set() or self.queued_bytes + len(value) > self.max_bytes:
                return False
            self.queued += 1
            self.queued_bytes += len(value)
            self._waiting.append(_Queued(value, load))
            self._changed.notify_all()
        return True

    def poll(self, timeout: float) -> None:
        """Report what became of records, and wait up to ``timeout`` seconds for the first."""
        with self._changed:
            self._changed.wait_for(lambda: self._results, timeout)
        self._report_results()

    def close(self, timeout: float) -> None:
        """Send queued records within ``timeout`` seconds. Those left then are reported as ``closed``."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, timeout)
            self._stopping.set()
            left = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        self._connection.abort()
        self._report_results()
        for queued in left:
            self._report(queued, ExportOutcome("closed", retry_after=0.0))

    def _report_results(self) -> None:
        while True:
            with self._changed:
                if not self._results:
                    return
                queued, outcome = self._results.popleft()
            if outcome.too_large and self._stopping.is_set():  # its halves would have no time
                outcome = ExportOutcome("closed", retry_after=0.0)
            self._report(queued, outcome)

    def _report(self, queued: _Queued, outcome: ExportOutcome) -> None:
        with self._changed:
            self.queued -= 1
            self.queued_bytes -= len(queued.value)
        too_large = queued.value if outcome.too_large else None
        self._on_settled(queued.load, outcome.reason, outcome.retry_after is not None, too_large, outcome.lost)

    # ---- on the thread that sends -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while (queued := self._next_queued()) is not None:
            try:
                outcome = self._deliver(queued.value)
            except Exception:
                log.exception("opentelemetry_exporter_failed")
                outcome = ExportOutcome("failed")
            with self._changed:
                if self._stopping.is_set():
                    break  # it was reported
                self._waiting.popleft()
                if outcome.reason is None or outcome.lost is not None:
                    self.records_delivered += 1
                    self.bytes_delivered += len(queued.value)
                self._results.append((queued, outcome))
                self._changed.notify_all()
        self._connection.close()

    def _next_queued(self) -> _Queued | None:
        """Wait for a record, which stays the first. Return None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopping.is_set())
            return None if self._stopping.is_set() else self._waiting[0]

    def _deliver(self, value: bytes) -> ExportOutcome:
        """Send a record until that has worked, cannot work, or the end has come."""
        if len(value) > MAX_RECORD_BYTES:
            return ExportOutcome("too_large", too_large=True)
        body = self._encoder.encode_request(value)
        if self._compresses:
            body = zlib.compress(body, GZIP_LEVEL, wbits=zlib.MAX_WBITS | 16)
        attempt = 0
        while True:
            outcome = self._post(body)
            if outcome.retry_after is None:
                self._log_state(None)
                return outcome
            delay = retry_delay(attempt, outcome.retry_after, random.random())  # noqa: S311 - no secret
            self._log_state(outcome.reason)
            if self._stopping.wait(delay):
                return outcome
            attempt += 1

    def _post(self, body: bytes) -> ExportOutcome:
        try:
            response = self._connection.post(body)
        except OSError as error:
            return ExportOutcome(type(error).__name__, retry_after=0.0)
        return outcome_of(response.status, response.headers, response.body, time.time())

    def _log_state(self, failure: str | None) -> None:
        """Log the first failure, and the end of the failures."""
        if failure is not None and not self._is_failing:
            log.warning("opentelemetry_export_failed", reason=failure)
        elif failure is None and self._is_failing:
            log.info("opentelemetry_export_works_again")
        self._is_failing = failure is not None
