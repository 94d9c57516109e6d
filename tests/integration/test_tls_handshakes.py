"""Handshakes with clients that end in an unusual way: with a drain, with their listener, after a mistake."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy.net.connection_manager import SPREAD_SHARE
from proxy.net.relay import Relay
from tests.integration.peer import answer_in_order
from tests.integration.test_tls import HandMade
from tests.integration.tls_bench import silent_sidecar, tls_bench  # noqa: F401


async def test_the_wait_for_handshakes_is_a_part_of_the_drain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with tls_bench(tmp_path, answer_in_order) as running:
        client = await HandMade.dial(running)
        await running.until(lambda: running.counters.active == 1)
        ended, left = running.manager._end_connections, []

        async def end_connections(relays: Sequence[Relay], timeout_s: float, spread_s: float = 0.0) -> None:
            left.append((timeout_s, spread_s))
            await ended(relays, timeout_s, spread_s)

        monkeypatch.setattr(running.manager, "_end_connections", end_connections)
        await running.manager.drain(0.4, spread=True)
        ((timeout, spread),) = left
        assert timeout <= 0.4 * (1 - SPREAD_SHARE)
        assert spread <= timeout
        client.writer.close()


async def test_a_handshake_of_a_removed_listener_ends_with_it(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order) as running:
        client = await HandMade.dial(running)
        await running.until(lambda: running.counters.active == 1)
        running.manager.update_config(running.config.model_copy(update={"listeners": ()}), running.sink)
        with pytest.raises(ConnectionError):
            await client.first_byte()
        assert running.counters.closed == {"drain_completed": 1}
        client.writer.close()


async def test_a_mistake_after_a_handshake_closes_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a mistake")

    async with tls_bench(tmp_path, answer_in_order) as running:
        monkeypatch.setattr(running.manager, "_connect", fail)
        with capture_logs() as lines:
            client = await HandMade.dial(running)
            with pytest.raises(ConnectionError):
                await client.first_byte()
        assert running.counters.closed == {"client_reset": 1}
        assert [line["error"] for line in lines if line["event"] == "relay_failed"] == ["KeyError"]
        client.writer.close()
        monkeypatch.setattr(running.manager, "_on_handshake_end", fail)
        with capture_logs() as lines:
            client = await HandMade.dial(running)
            await client.shake_hands()
            client.flush()
            await running.until(lambda: "handshake_end_failed" in [line["event"] for line in lines])
        client.writer.close()


async def test_a_connection_whose_connect_has_not_begun_is_drained(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order, **{"security.protocol": "PLAINTEXT"}) as running:
        running.manager.listeners.by_name["CLIENT"].upstream.near = None
        client, accepted = socket.socketpair()
        with client:
            running.sidecar.admission.submit(running.config.listeners[0], accepted, "127.0.0.1", 1)
            assert running.counters.active == 1
            await running.manager._end_setups(list(running.manager.relays))
            assert accepted.fileno() == -1
            assert not running.manager.relays
            assert running.counters.closed == {"drain_completed": 1}


async def test_a_client_hello_that_is_announced_too_long_is_refused(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order) as running:
        with capture_logs() as lines:
            client = await HandMade.dial(running)
            client.writer.write(b"\x16\x03\x01\x40\x00\x01\x00\x40\x01")
            assert await client.reader.read() == b""
        assert running.counters.closed == {"client_tls_failed": 1}
        (line,) = [line for line in lines if line["event"] == "connection_refused"]
        assert line["detail"] == "its ClientHello has 16385 bytes, more than 16384"
        client.writer.close()
