"""Very many client addresses: what is kept of each is small, and goes when they have gone."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from proxy.limits.connection_quotas import ConnectionQuotas
from proxy.limits.model import DEFAULT_ADDRESS, Limits, ListenerLimits, Quota
from tests.faults.site import FULL

KIB = 1024
MANY = 100_000 if FULL else 1_000
SAMPLES = 12
"""Of a rate, once it is in full use."""

SECOND = 1_000


@pytest.mark.promise("CONTRIBUTING.md", "What is kept of a client address is small, and goes once it was idle.")
def test_an_address_takes_less_than_a_kibibyte_and_nothing_once_it_was_idle() -> None:
    """D2; each is as large as it can be, with every sample in use."""
    rates = {DEFAULT_ADDRESS: Quota(5)}
    quotas: ConnectionQuotas = ConnectionQuotas(
        Limits({"CLIENT": ListenerLimits()}, ip_rates=rates, ip_connections=Quota(100)),
        admit=lambda _listener, _token: None,
        refuse=lambda _listener, _token: None,
        is_disconnected=lambda _token: False,
        evict=lambda _listeners: None,
        on_throttle=lambda _throttle: None,
    )
    addresses = [f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in range(MANY)]
    gc.collect()
    tracemalloc.start()
    try:
        now = 0
        for _ in range(SAMPLES):
            now += SECOND
            for address in addresses:
                quotas.submit("CLIENT", address, 0, now)
        assert quotas.open_total == SAMPLES * MANY
        assert tracemalloc.get_traced_memory()[0] <= MANY * KIB
        for address in addresses * SAMPLES:
            quotas.release("CLIENT", address, now)
        assert len(quotas.sensors.addresses) == MANY
        now += SAMPLES * SECOND
        while quotas.sensors.addresses:
            before = len(quotas.sensors.addresses)
            quotas.sensors.addresses.forget_idle(now)
            assert len(quotas.sensors.addresses) < before
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] <= MANY * KIB // 10  # Python's dicts keep their tables
        assert not quotas.open_by_address
    finally:
        tracemalloc.stop()
