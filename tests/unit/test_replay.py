"""What ``brokerside observers try`` counts of captured connections."""

from __future__ import annotations

from pathlib import Path

import pytest

from observers.packet_capture import Bytes
from proxy.commands.observers import _configured, _Replay
from proxy.core.observation_interest import WANT_EXCHANGE
from tests.frames import METADATA, request
from tests.tools.observation_sinks import watching

A, B, C = (("10.0.0.7", port) for port in (1, 2, 3))


def replayed(*parts: Bytes) -> _Replay:
    config, listener = _configured(None, "x:Y", None)
    replay = _Replay(Path("x.pcap"), config, listener, watching([].append, [].append, wanted=WANT_EXCHANGE))
    for part in parts:
        replay.take(part)
    return replay


def sent(client: tuple[str, int], data: bytes, note: str = "") -> Bytes:
    return Bytes(client, "client", 1.0, data, note)


@pytest.mark.promise(
    "observers.md", "`observers try` says how many connections of a capture could not be read to their end."
)
def test_connections_that_were_not_read_count_among_all() -> None:
    replay = replayed(
        sent(A, request(METADATA, 1, 1)),
        sent(B, b"", "it began before the capture"),
        sent(C, request(METADATA, 1, 1)),
        sent(C, b"", "bytes of the client are missing"),
        sent(A, b""),
    )
    assert (replay.connections, replay.unread) == (3, 2)
