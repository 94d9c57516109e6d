"""What a listener answers itself follows what its broker says, what is configured, and what is known of the fleet."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy.features.catalog import AUDIT_EVENT_SCHEMA, SUPPORTED, LevelRange
from proxy.features.records import FeatureUpdate
from proxy.features.updates import FEATURE_UPDATE_FAILED, UpdateRequest, UpdateResult
from proxy.features.view import FeaturesView
from proxy.interceptors import update_features
from proxy.interceptors.broker_metadata import BrokerView, FleetView, decode_response, encode_request
from proxy.interceptors.update_features import UPDATE_FEATURES
from proxy.net import api_versions_probe
from proxy.net.feature_update_calls import NO_CONTROLLER
from proxy.net.worker_pool import WorkerPool
from proxy.telemetry.snapshot import Snapshot
from tests.frames import API_VERSIONS, METADATA, request, response
from tests.integration.conftest import free_port
from tests.integration.peer import Reader, Writer, read_frame, upstream
from tests.integration.test_connection_handler import Bench

BROKER_METADATA = 30000
UPDATE = UpdateRequest(2, 1000, (FeatureUpdate(AUDIT_EVENT_SCHEMA, 2),))


class Broker:
    """Answers ApiVersions with ``apis``, everything that is among them with ``answers`` or nothing, and closes for
    anything else."""

    def __init__(self) -> None:
        self.apis = {METADATA: (0, 12), API_VERSIONS: (0, 4)}
        self.answers: dict[int, bytes] = {}
        self.deaf = False
        self.asked = 0
        self.writers: list[Writer] = []

    async def behave(self, reader: Reader, writer: Writer) -> None:
        self.writers.append(writer)
        while not self.deaf:
            frame = await read_frame(reader)
            key, version, correlation_id = struct.unpack_from(">hhi", frame, 4)
            first, last = self.apis.get(key, (0, -1))
            if not first <= version <= last:
                return
            body = self.answers.get(key, b"")
            if key == API_VERSIONS:
                self.asked += 1
                flexible = version >= 3
                entries = (struct.pack(">hhh", key, *found) + b"\0" * flexible for key, found in self.apis.items())
                count = bytes([len(self.apis) + 1]) if flexible else struct.pack(">i", len(self.apis))
                body = b"\0\0" + count + b"".join(entries) + bytes(5) * flexible
            writer.write(response(correlation_id, body))

    def end(self) -> None:
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()


class Site(Bench):
    """Who is_ready, before a broker; ``answer`` takes a connection of its own."""

    broker: Broker

    async def answer(self, frame: bytes) -> bytes:
        """What comes back, or nothing where it is the end, be it a reset: the broker may not have read everything."""
        reader, writer = self.clients[await self.dial()]
        writer.write(frame)
        async with asyncio.timeout(60):
            try:
                return await read_frame(reader)
            except (asyncio.IncompleteReadError, ConnectionResetError):
                return b""
            finally:
                writer.close()

    async def every(self, frame: bytes, answer: Callable[[bytes], bool]) -> None:
        """Wait until every process gives an answer that is so."""
        async with asyncio.timeout(60):
            while not all([answer(await self.answer(frame)) for _ in range(4)]):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def closed(self, cause: str) -> int:
        snapshot: Snapshot = await self.handler.snapshot()
        return sum(counters.closed.get(cause, 0) for counters in snapshot.listener_counters.values())


@pytest.fixture(params=[1, 2])
def workers(request: pytest.FixtureRequest) -> int:
    return int(request.param)


Run = Callable[..., object]


@pytest.fixture
def run(tmp_path: Path, workers: int) -> Run:
    @asynccontextmanager
    async def run(*, known: bool = True, features: bool = False) -> AsyncIterator[Site]:
        broker = Broker()
        if features:
            broker.apis[UPDATE_FEATURES] = (0, 2)
            broker.answers[UPDATE_FEATURES] = b"\0" + update_features.encode_response(UPDATE, UpdateResult(0))
        broker.deaf = not known
        async with upstream(broker.behave) as port:
            path = tmp_path / "sidecar.yaml"
            path.write_text(
                f"broker.id: 1\nworkers: {workers}\n"
                f"admin: {{bind: '127.0.0.1:{free_port()}'}}\n"
                f"listeners:\n- {{name: CLIENT, bind: '127.0.0.1:{free_port()}', upstream: '127.0.0.1:{port}'}}\n"
            )
            site = Site(path)
            site.broker = broker
            if isinstance(site.handler, WorkerPool):
                await site.handler.start()
            try:
                if known:
                    await site.every(request(9999, 0, 1), lambda answer: answer == response(1))
                yield site
            finally:
                await site.close()

    return run


@pytest.mark.promise(
    "unsupported-requests.md",
    "Each process asks the broker what it supports when it starts, and forwards everything until it knows.",
)
async def test_it_is_asked_at_the_start_and_no_client_is_needed(run: Run, workers: int) -> None:
    async with run(known=False) as site:
        assert await site.answer(request(9999, 0, 1)) == b"", "the broker itself closes"
        site.broker.deaf = False
        await site.every(request(9999, 0, 1), lambda answer: answer == response(1))
        await site.until(lambda: site.broker.asked >= workers)
        assert site.broker.asked == workers


async def forwarded(site: Site) -> bool:
    """Whether the broker gets a request that it once did not support."""
    (counters,) = site.handler.listener_counters.values()
    count = counters.intercepted[METADATA, "replied"]
    assert await site.answer(request(METADATA, 13, 1)) == response(1)
    return bool(counters.intercepted[METADATA, "replied"] == count)


@pytest.mark.promise("unsupported-requests.md", "A broker that has ended a connection is asked again what it supports.")
@pytest.mark.parametrize("workers", [1], indirect=True)
async def test_a_broker_that_comes_back_is_asked_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_versions_probe, "MIN_PROBE_INTERVAL", 0.0)
    with capture_logs() as lines:
        async with run() as site:
            assert await site.answer(request(METADATA, 13, 1)) == response(1), "of nothing, from the sidecar"
            site.broker.apis[METADATA] = (0, 13)
            open_ = await site.dial()
            assert await site.works(open_)
            site.broker.end()
            assert await site.has_ended(open_)
            site.clients[open_][1].close()

            async with asyncio.timeout(60):
                while not await forwarded(site):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
    said = {line["event"]: line for line in lines}
    assert "upstream_versions_known" in said
    assert said["upstream_versions_changed"]["changed"] == ["Metadata"]


@pytest.mark.promise(
    "unsupported-requests.md", "An old answer of what the broker supports is asked for again when a client connects."
)
@pytest.mark.parametrize("workers", [1], indirect=True)
async def test_an_answer_that_is_old_is_asked_for_again_with_a_new_connection(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_versions_probe, "MIN_PROBE_INTERVAL", 0.0)
    monkeypatch.setattr(api_versions_probe, "MAX_ANSWER_AGE", 0.0)
    async with run() as site:
        site.broker.apis[METADATA] = (0, 13)
        async with asyncio.timeout(60):
            while not await forwarded(site):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@pytest.mark.promise(
    "unsupported-requests.md", "Versions that a client has just received in ApiVersions are supported at once."
)
@pytest.mark.parametrize("workers", [1], indirect=True)
async def test_what_a_client_receives_is_known_at_once(run: Run) -> None:
    async with run() as site:
        site.broker.apis[METADATA] = (0, 13)
        (counters,) = site.handler.listener_counters.values()
        assert len(await site.answer(request(API_VERSIONS, 0, 1))) == 14 + 3 * 6
        assert await site.answer(request(METADATA, 13, 2)) == response(2)
        assert counters.intercepted[METADATA, "replied"] == 0


@pytest.mark.promise(
    "unsupported-requests.md",
    "`unsupported.request.response` may change while the sidecar runs, for all of its processes.",
)
async def test_another_policy_holds_for_all_processes(run: Run) -> None:
    async with run() as site:
        listeners = tuple(
            one.model_copy(update={"unsupported_request_response": "close"}) for one in site.config.listeners
        )
        site.handler.update_config(site.config.model_copy(update={"listeners": listeners}))
        await site.every(request(9999, 0, 1), lambda answer: answer == b"")
        async with asyncio.timeout(60):
            while await site.closed("unsupported_request") < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@pytest.mark.promise(
    "architecture.md",
    "Every worker process, and each that replaces a dead one, knows the brokers and sidecars of the fleet.",
)
async def test_the_fleet_is_passed_to_all_processes_and_to_those_to_come(run: Run) -> None:
    frame = request(BROKER_METADATA, 0, 5, encode_request([-1]))

    def reported(answer: bytes) -> bool:
        if not (found := decode_response(answer[8:])):
            return False
        assert (found[0].host, found[0].port, found[0].protocol_max, found[0].tags) == ("h", 9092, 4, {"a": "b"})
        return True

    async with run() as site:
        assert decode_response((await site.answer(frame))[8:]) == []
        site.handler.update_fleet_view(FleetView(1, (BrokerView(1, {"client": ("h", 9092)}, 3, 4, {"a": "b"}),)))
        await site.every(frame, reported)
        if isinstance(site.handler, WorkerPool):
            os.kill(site.handler._workers[1].pid, signal.SIGKILL)
            await site.seen(
                lambda seen: seen.worker_restarts == 1 and all(w.is_available for w in site.handler._workers.values())
            )
            await site.every(frame, reported)


def update_request(correlation_id: int) -> bytes:
    return request(UPDATE_FEATURES, 2, correlation_id, b"\0" + update_features.encode_request(UPDATE))


def update_response(correlation_id: int, result: UpdateResult) -> bytes:
    return response(correlation_id, b"\0" + update_features.encode_response(UPDATE, result))


@pytest.mark.promise(
    "features.md", "Every worker process shows the fleet's features, and updates of its clients reach the controller."
)
@pytest.mark.slow
async def test_the_features_are_passed_to_all_processes_and_updates_come_back(run: Run) -> None:
    asked: list[UpdateRequest] = []

    async def update(request: UpdateRequest) -> UpdateResult:
        asked.append(request)
        return UpdateResult(FEATURE_UPDATE_FAILED, "not now")

    def shows_features(answer: bytes) -> bool:
        return answer.count(AUDIT_EVENT_SCHEMA.encode()) == 2

    async with run(features=True) as site:
        frame = request(API_VERSIONS, 3, 1, b"\0\2a\2b\0")
        assert AUDIT_EVENT_SCHEMA.encode() not in await site.answer(frame)
        broker_s = b"\0" + update_features.encode_response(UPDATE, UpdateResult(0))
        assert await site.answer(update_request(1)) == response(1, broker_s), "without features it is forwarded"
        view = FeaturesView(SUPPORTED, {AUDIT_EVENT_SCHEMA: LevelRange(1, 1)}, 4)
        site.handler.update_features_view(view)
        await site.every(frame, shows_features)
        answer = await site.answer(update_request(2))
        assert answer == update_response(2, NO_CONTROLLER), "there is nobody to ask yet"
        site.handler.on_feature_update(update)
        for number in range(3, 7):
            expected = update_response(number, UpdateResult(FEATURE_UPDATE_FAILED, "not now"))
            assert await site.answer(update_request(number)) == expected
        assert [one.updates for one in asked] == [UPDATE.updates] * 4
        assert {(one.principal, one.client_ip, one.listener) for one in asked} == {
            ("User:ANONYMOUS", "127.0.0.1", "CLIENT")
        }
        if isinstance(site.handler, WorkerPool):
            os.kill(site.handler._workers[1].pid, signal.SIGKILL)
            await site.seen(
                lambda seen: seen.worker_restarts == 1 and all(w.is_available for w in site.handler._workers.values())
            )
            await site.every(frame, shows_features)
            assert await site.answer(update_request(7)) == update_response(7, UpdateResult(96, "not now"))
