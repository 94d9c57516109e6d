"""When the certificates of the listeners expire: for the metric, and log lines 30, 7 and 1 days before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from math import inf

import structlog

from proxy.config import Config
from proxy.errors import Side
from proxy.tls import certificates

DAY = 86_400.0

WARNING_DAYS = (0, 1, 7, 30)
"""Days before the expiry from which a line is logged, once for each number."""

CHECK_INTERVAL = 60.0
"""Seconds between two checks."""

log = structlog.get_logger(__name__)

Owner = tuple[str, Side]
"""A listener, and the side that is shown the certificate."""


def certificates_of(config: Config) -> Iterator[tuple[Owner, certificates.Certificate]]:
    """Give the certificate that each side of each listener is shown."""
    for listener in config.listeners:
        sides: list[tuple[Side, object]] = [("client", listener.tls), ("broker", listener.upstream_tls)]
        for side, section in sides:
            location = getattr(section, "ssl_certificate_location", None)
            if location is not None:
                yield (listener.name, side), certificates.first_of(location.reveal())


class CertificateExpiry:
    """Watches the certificates of the running configuration. Belongs to the event loop's thread."""

    def __init__(self, config: Config, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._expiry: dict[Owner, float] = {}
        self._logged: dict[Owner, float] = {}  # the least number of days that was logged
        self.update_config(config)

    @property
    def timestamps(self) -> dict[tuple[str, str], float]:
        """When each certificate expires, in seconds since 1970."""
        return {(listener, side): expiry for (listener, side), expiry in self._expiry.items()}

    def update_config(self, config: Config) -> None:
        """Watch the certificates of another configuration."""
        before = self._expiry
        self._expiry = {owner: certificate.not_after for owner, certificate in certificates_of(config)}
        self._logged = {
            owner: days for owner, days in self._logged.items() if before.get(owner) == self._expiry.get(owner)
        }
        self._next_at = -inf

    def on_tick(self) -> None:
        """Log what expires soon. Called by the ticker."""
        now = self._now()
        if now < self._next_at:
            return
        self._next_at = now + CHECK_INTERVAL
        for owner, expiry in self._expiry.items():
            due = next((days for days in WARNING_DAYS if expiry - now <= days * DAY), None)
            if due is None or due >= self._logged.get(owner, inf):
                continue
            self._logged[owner] = due
            listener, side = owner
            at = datetime.fromtimestamp(expiry, UTC).isoformat()
            if due == 0:
                log.error("certificate_expired", listener=listener, shown_to=side, expiry=at)
            else:
                log.warning("certificate_expires", listener=listener, shown_to=side, expiry=at, within_days=due)
