"""The registry's thread, before a topic that only this process knows."""

import asyncio
from collections import Counter
from collections.abc import Mapping

from structlog.testing import capture_logs

from proxy.fleet import registry_topic
from proxy.fleet.membership import Member, RegistryRecord
from proxy.fleet.registry import RegistryThread
from proxy.fleet.sidecar_record import SidecarRecord, encode, record_key

VALUE = encode(SidecarRecord({}, (), None, -1, "1"))


class Topic:
    """``reads``: what each read returns, then nothing."""

    def __init__(self, reads: list[list[RegistryRecord]]) -> None:
        self.reads = reads
        self.dropped: Counter[str] = Counter()
        self.written: list[tuple[bytes, bytes]] = []

    def read(self, seconds: float) -> tuple[list[RegistryRecord], bool]:
        return (self.reads.pop(0) if self.reads else []), not self.reads

    def write(self, key: bytes, value: bytes, done: object) -> None:
        self.written.append((key, value))

    def close(self) -> None:
        return


async def members_of(made: Topic, monkeypatch) -> Mapping[int, Member]:
    monkeypatch.setattr(registry_topic, "RegistryTopic", lambda settings, authenticator: made)
    reported: asyncio.Future[Mapping[int, Member]] = asyncio.get_running_loop().create_future()
    registry = RegistryThread(
        {}, "me", lambda seen, end: reported.set_result(seen) if end and not reported.done() else None
    )
    registry.register(1, VALUE)
    registry.withdraw()
    registry.start()
    try:
        return await asyncio.wait_for(reported, 10)
    finally:
        await registry.close()


async def test_sidecars_are_reported_as_read_and_nothing_is_written_once_it_has_withdrawn(monkeypatch):
    made = Topic([[RegistryRecord(record_key(2), VALUE, 1000)], [RegistryRecord(record_key(3), VALUE, 1000)]])

    with capture_logs() as logs:
        seen = await members_of(made, monkeypatch)

    assert {node_id: one.alive for node_id, one in seen.items()} == {2: True, 3: True}
    assert made.written == []
    assert logs == []


async def test_a_topic_with_the_writers_clocks_is_reported_once(monkeypatch):
    made = Topic([[RegistryRecord(record_key(2), VALUE, None)], [RegistryRecord(record_key(3), VALUE, None)]])

    with capture_logs() as logs:
        await members_of(made, monkeypatch)

    [reported] = [one for one in logs if one["event"] == "registry_clock"]
    assert "message.timestamp.type=LogAppendTime" in reported["advice"]
