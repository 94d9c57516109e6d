"""When certificates expire: the metric's values and the log lines, with a clock of the test's own."""

from __future__ import annotations

import time

import pytest
import yaml
from structlog.testing import capture_logs

from proxy.config import load
from proxy.net.certificate_expiry import CHECK_INTERVAL, DAY, CertificateExpiry
from tests.tools.authority import Authority


def config_of(folder, days):
    pair = Authority(folder).issue("broker", days=days)
    tls = {"ssl.certificate.location": str(pair.certificate), "ssl.key.location": str(pair.key)}
    listener = {"name": "TLS", "bind": "127.0.0.1:1", "upstream": "127.0.0.1:2", "security.protocol": "SSL", "tls": tls}
    path = folder / "sidecar.yaml"
    path.write_text(yaml.safe_dump({"broker.id": 1, "listeners": [listener]}))
    return load(path, {})


class Clock:
    def __init__(self):
        self.now = time.time()

    def __call__(self):
        return self.now


def lines(expiry, clock, seconds):
    clock.now += seconds
    with capture_logs() as found:
        expiry.on_tick()
    return [(line["event"], line.get("within_days")) for line in found]


@pytest.mark.promise("tls.md", "A line is logged once 30, 7 and 1 days before a certificate expires.")
def test_a_line_is_logged_once_30_7_and_1_days_before_and_at_the_end(tmp_path):
    clock = Clock()
    expiry = CertificateExpiry(config_of(tmp_path, 40), clock)
    assert lines(expiry, clock, 0) == []
    assert lines(expiry, clock, 11 * DAY) == [("certificate_expires", 30)]
    assert lines(expiry, clock, CHECK_INTERVAL) == []
    assert lines(expiry, clock, 23 * DAY) == [("certificate_expires", 7)]
    assert lines(expiry, clock, 5.5 * DAY) == [("certificate_expires", 1)]
    assert lines(expiry, clock, DAY) == [("certificate_expired", None)]
    assert lines(expiry, clock, DAY) == []
    clock = Clock()
    new = CertificateExpiry(config_of(tmp_path, 0.5), clock)
    assert lines(new, clock, 0) == [("certificate_expires", 1)]
    new.update_config(config_of(tmp_path, 6))
    assert lines(new, clock, 0) == [("certificate_expires", 7)], "a new one is watched from the beginning"
