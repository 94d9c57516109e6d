"""A running configuration takes over another one as a whole or not at all, whoever asks and how often."""

import asyncio
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import proxy.reload
from proxy.config import Config, load
from proxy.config.difference import Change, differences, fingerprint
from proxy.config.reference import example
from proxy.errors import LocalError
from proxy.reload import ConfigFileMonitor, Reloader, ReloadResult
from tests.tools.authority import Authority
from tests.tools.fragments import write_example_files
from tests.tools.mutations import mutations

CANARY = "c4n4ry-hunter2"

BASE = """\
broker.id: 1
internal.bootstrap.servers: 127.0.0.1:19094
internal: {sasl.username: brokerside, sasl.password: {file: password}}
listeners:
  - {name: CLIENT, bind: "127.0.0.1:9092", upstream: "127.0.0.1:19092"}
quotas: {max.connections: 5, ips: {10.0.0.7: {connection_creation_rate: 5}}}
"""


class Running:
    """A ``Reloader`` of a real file, and what it applied."""

    def __init__(self, folder: Path, text: str = BASE) -> None:
        self.path = folder / "sidecar.yaml"
        (folder / "password").write_text(CANARY)
        self.path.write_text(text)
        self.applied: list[Config] = []
        self.has_applied = asyncio.Event()
        self.time = 100.0
        self.loads = 0
        self.before_load = threading.Event()  # a load waits for it
        self.before_load.set()
        self.loading = threading.Event()
        self.reloader = Reloader(
            ConfigFileMonitor(self.path), load(self.path, {}), self._apply, load=self._load, now=lambda: self.time
        )

    async def _apply(self, config: Config) -> bool:
        self.applied.append(config)
        self.has_applied.set()
        return True

    def _load(self, path: str | os.PathLike[str], pause: Callable[[], None]) -> Config:
        self.loads += 1
        self.loading.set()
        assert self.before_load.wait(60)
        return load(path, {}, pause)

    async def reload(self, text: str | None = None) -> ReloadResult:
        if text is not None:
            self.path.write_text(text)
        return await self.reloader.reload("test")

    async def until_loading(self) -> None:
        assert await asyncio.to_thread(self.loading.wait, 60)


@pytest.fixture
def running(tmp_path):
    return Running(tmp_path)


@pytest.mark.promise("restart.md", "A reload reports each key that changed, with its old and its new value.")
async def test_a_change_is_applied_and_reported(running):
    before = running.reloader.state.hash
    running.time = 200.0
    text = BASE.replace("max.connections: 5", "max.connections: 6") + "log.level: debug\n"

    with capture_logs() as logged:
        result = await running.reload(text)

    changes = (Change("quotas.max.connections", "5", "6"), Change("log.level", "info", "debug"))
    assert result == ReloadResult("applied", changed=("quotas.max.connections", "log.level"), changes=changes)
    (applied,) = running.applied
    assert applied is running.reloader.config
    assert (applied.quotas.max_connections, applied.log_level) == (6, "debug")
    state = running.reloader.state
    assert state.hash == fingerprint(applied) != before
    assert (state.loaded_at, state.last_successful) == (200.0, True)
    assert state.results == {"applied": 1, "unchanged": 0, "rejected": 0}
    (line,) = logged
    assert line["event"] == "config_reloaded"
    assert line["keys"] == ("quotas.max.connections", "log.level")
    assert line["changes"] == ["quotas.max.connections: 5 -> 6", "log.level: info -> debug"]
    assert line["reason"] == "test"

    running.time = 300.0
    same = f"# {text}workers: 1\n# the default\nbroker.id: 1\n"
    assert await running.reload(same) == ReloadResult("unchanged")
    assert (len(running.applied), state.loaded_at) == (1, 300.0)
    result = await running.reload(text.replace("10.0.0.7", "10.0.0.8"))
    assert result.changed == tuple(f"quotas.ips.10.0.0.{n}.connection_creation_rate" for n in (7, 8))


@pytest.mark.promise("restart.md", "A mistake, or a key that needs a restart, rejects the whole file.")
async def test_a_mistake_changes_nothing(running):
    config, state = running.reloader.config, running.reloader.state
    before = state.hash

    with capture_logs() as logged:
        result = await running.reload(BASE.replace("max.connections: 5", "max.connections: 0") + "log.level: loud\n")

    assert result.result == "rejected"
    assert [error.partition(":")[0] for error in result.errors] == ["quotas.max.connections", "log.level"]
    assert (running.applied, running.reloader.config) == ([], config)
    assert (state.hash, state.loaded_at, state.last_successful) == (before, 100.0, False)
    assert state.last_errors == list(result.errors)
    assert [(line["event"], line["log_level"], line["errors"]) for line in logged] == [
        ("config_rejected", "error", list(result.errors))
    ]
    assert (await running.reload(BASE)).result == "unchanged"
    assert (state.last_successful, state.last_errors) == (True, [])
    text = (
        BASE.replace("broker.id: 1", "broker.id: 2")
        .replace("max.connections: 5", "max.connections: 6")
        .replace("name: CLIENT", "upstream.source: 127.0.0.1, name: CLIENT")
        + "workers: 2\naudit: {exclude.topics: [t]}\n"
    )
    assert await running.reload(text) == ReloadResult(
        "rejected",
        errors=(
            "broker.id: a change needs a restart (running: 1, file: 2)",
            'audit.exclude.topics: a change needs a restart (running: [], file: ["t"])',
            "workers: a change needs a restart (running: 1, file: 2)",
        ),
    )
    running.path.write_bytes(b"\xff")
    assert (await running.reload()).errors == ("is not text in UTF-8: byte 0",)
    running.path.unlink()
    assert (await running.reload()).errors == ("cannot be read: No such file or directory",)
    assert (running.applied, running.reloader.config, state.hash) == ([], config, before)


async def test_who_asks_for_reloads_cannot_fill_the_log(running):
    with capture_logs() as logged:
        for limit in (0, 0, -1, 0, 0, 6, 0):
            await running.reload(BASE.replace("max.connections: 5", f"max.connections: {limit}"))
    expected = ["config_rejected"] * 3 + ["config_reloaded", "config_rejected"]
    assert [line["event"] for line in logged] == expected


@pytest.mark.promise("restart.md", "A reload compares listeners by name, whatever their order in the file.")
async def test_listeners_come_and_go_by_name_and_one_that_stays_is_compared_with_itself(running):
    more = '  - {name: MORE, bind: "127.0.0.1:9093", upstream: "127.0.0.1:19093"}\n'
    first = BASE.replace("listeners:\n", f"listeners:\n{more}")

    assert (await running.reload(first)).changes == (Change("listeners[0]", "nothing", "MORE"),)
    moved = first.replace("127.0.0.1:19092", "127.0.0.1:29092")
    assert (await running.reload(moved)).changes == (
        Change("listeners[1].upstream", "127.0.0.1:19092", "127.0.0.1:29092"),
    )
    last = moved.replace(more, "").replace("quotas:", f"{more}quotas:")
    assert (await running.reload(last)).result == "unchanged"
    assert (await running.reload(last.replace(more, ""))).changes == (Change("listeners[1]", "MORE", "nothing"),)


async def test_secrets_are_not_shown_in_changes(running):
    folder = running.path.parent
    (folder / "password").write_text("another")
    text = BASE.replace("sasl.username: brokerside", "sasl.username: other").replace("19094", "29094")
    with capture_logs() as logged:
        result = await running.reload(text)
    assert result.errors == (
        "internal.bootstrap.servers: a change needs a restart",
        "internal.sasl.username: a change needs a restart",
        "internal.sasl.password: a change needs a restart",
    )
    assert not re.search(f"another|other|{CANARY}|29094", str(logged) + str(running.reloader.state))

    (folder / "token").write_text(CANARY)
    text = BASE + "observer.class.names: [a:B]\nobservers: {a:B: {token: {file: token}, top: 5}}\n"
    running = Running(folder, text)
    (folder / "token").write_text("other")
    with capture_logs() as logged:
        result = await running.reload(text.replace("top: 5", "top: 6"))
    assert result.changes == (Change("observers.a:B.token", "***", "***"), Change("observers.a:B.top", "5", "6"))
    assert not re.search(f"other|{CANARY}", str(logged))


@pytest.mark.promise("restart.md", "If something of a reload cannot be applied, nothing of it is.")
async def test_what_cannot_be_applied_is_rejected_and_the_running_configuration_stays(running, monkeypatch):
    before = running.reloader.state.hash

    async def fail(config: Config) -> bool:
        raise LocalError("cannot listen on 127.0.0.1:9092: Address already in use")

    def broken(*_: object) -> Config:
        raise RuntimeError(CANARY)

    running.reloader._apply = fail
    result = await running.reload(BASE + "log.level: debug\n")
    assert result == ReloadResult("rejected", errors=("cannot listen on 127.0.0.1:9092: Address already in use",))
    assert (running.reloader.state.hash, running.reloader.config.log_level) == (before, "info")
    assert not running.reloader.state.last_successful

    monkeypatch.setattr(running.reloader, "_load", broken)
    with capture_logs():
        result = await running.reload()
    assert result == ReloadResult("rejected", errors=("cannot be read: RuntimeError, see the log",))


@pytest.mark.promise("config.md", "A file with a mistake changes nothing at all, and its message has a place.")
@pytest.mark.parametrize("count", [10, pytest.param(200, marks=pytest.mark.slow)])
async def test_mutations_change_nothing(tmp_path, count):
    write_example_files(tmp_path, CANARY, "k1:" + 64 * "a")
    running = Running(tmp_path, example())
    before = running.reloader.state.hash
    located = r" at lines? \d+(, column \d+| and \d+)?$|: a change needs a restart|^(broker.id|listeners): is missing"

    for mutation in mutations(example(), count):
        with capture_logs():
            result = await running.reload(mutation.text)

        assert result.result == "rejected", mutation.what
        (error,) = result.errors
        assert re.search(located, error), (mutation.what, error)
        assert CANARY not in error
        assert running.reloader.state.hash == fingerprint(running.reloader.config) == before
    assert running.applied == []
    assert running.reloader.state.results == {"applied": 0, "unchanged": 0, "rejected": count}


@pytest.mark.promise("restart.md", "Requests for a reload that come during one share the next one.")
async def test_all_who_ask_during_a_reload_share_the_next(running):
    running.before_load.clear()
    first = asyncio.create_task(running.reloader.reload("first"))
    await running.until_loading()
    others = [asyncio.create_task(running.reloader.reload(f"other {n}")) for n in range(100)]
    await asyncio.sleep(0)
    running.path.write_text(BASE + "log.level: debug\n")  # after the first began to read: it may see either
    running.before_load.set()
    results = await asyncio.gather(*others)
    assert {(await first).result} | {result.result for result in results} <= {"applied", "unchanged"}
    assert running.loads == 2
    assert running.reloader.config.log_level == "debug"
    assert len(running.applied) == 1

    for _ in range(3):  # one after the other reads again
        assert (await running.reload()).result == "unchanged"
    assert running.loads == 5


@pytest.mark.promise("config.md", "A sidecar reads its file again when that has changed, or when asked to.")
async def test_a_changed_file_is_taken_over_and_a_hundred_requests_are_few(running, monkeypatch):
    watching = asyncio.create_task(running.reloader.run())
    running.path.write_text(BASE + "log.level: debug\n")
    for _ in range(100):
        running.reloader.request_reload("SIGHUP")
    await asyncio.wait_for(running.has_applied.wait(), 60)
    assert running.loads <= 2
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    assert asyncio.all_tasks() == {asyncio.current_task()}

    monkeypatch.setattr(proxy.reload, "FILE_POLL_INTERVAL", 0.01)
    running.has_applied.clear()
    watching = asyncio.create_task(running.reloader.run())
    running.path.write_text(BASE + "log.level: error\n")  # without a request
    await asyncio.wait_for(running.has_applied.wait(), 60)
    running.reloader.stop()
    await watching
    assert running.reloader.config.log_level == "error"


def test_a_change_of_a_file_counts_when_it_was_seen_twice(tmp_path):
    file, other = tmp_path / "config.yaml", tmp_path / "other"
    file.write_text("a")
    monitor = ConfigFileMonitor(file)
    assert not monitor.has_changed()
    file.write_text("ab")
    assert not monitor.has_changed()
    file.write_text("abc")
    assert not monitor.has_changed()
    assert monitor.has_changed()

    file.write_text("abcd")
    monitor.mark_loaded()
    assert [monitor.has_changed(), monitor.has_changed()] == [False, False], "what was read is known"

    other.write_text("efgh")  # of the same size and time
    times = file.stat()
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(file)
    assert [monitor.has_changed(), monitor.has_changed()] == [False, True]

    file.unlink()
    with capture_logs() as logged:
        assert not any(monitor.has_changed() for _ in range(3))
    assert [line["event"] for line in logged] == ["config_vanished"]
    file.write_text("new")
    assert [monitor.has_changed(), monitor.has_changed()] == [False, True]


@pytest.mark.promise("install.md", "A changed ConfigMap is noticed as a change of the file.")
def test_another_target_of_a_link_is_a_change_of_the_file(tmp_path):
    """As of a ConfigMap that is mounted."""
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "config.yaml").write_text(version)
    data = tmp_path / "..data"
    data.symlink_to("v1")
    config = tmp_path / "config.yaml"
    config.symlink_to("..data/config.yaml")
    monitor = ConfigFileMonitor(config)

    (tmp_path / "new").symlink_to("v2")
    (tmp_path / "new").replace(data)

    assert [monitor.has_changed(), monitor.has_changed()] == [False, True]


def test_other_secrets_and_keys_are_another_configuration_and_the_order_of_lines_is_none(tmp_path):
    def config(text: str) -> Config:
        (tmp_path / "c.yaml").write_text(text)
        return load(tmp_path / "c.yaml", {})

    text = f"{BASE}audit: {{hmac.keys.file: keys}}\nregistry: {{hmac.keys.file: registry}}\n"
    secrets = {"password": CANARY, "keys": "k1:" + 32 * "a", "registry": "k1:" + 32 * "a"}
    for name, secret in secrets.items():
        (tmp_path / name).write_text(secret)
    before = config(text)
    assert re.fullmatch("[0-9a-f]{16}", fingerprint(before))
    same = config("log.level: info\n" + text)
    assert (fingerprint(same), differences(before, same)) == (fingerprint(before), [])
    for name, secret in secrets.items():
        (tmp_path / name).write_text(secret + "other")
        changed = config(text)
        (found,) = differences(before, changed)
        assert str(found).endswith(": a change needs a restart"), name
        assert fingerprint(changed) != fingerprint(before), name
        (tmp_path / name).write_text(secret)


@pytest.mark.promise("architecture.md", "A file system that hangs delays no traffic, and a reload from it is rejected.")
async def test_a_file_system_that_hangs_rejects_reloads_and_holds_one_thread_alone(running, monkeypatch):
    monkeypatch.setattr(proxy.reload, "READ_TIMEOUT", 0.05)
    running.before_load.clear()
    threads = threading.active_count()
    with capture_logs():
        for _ in range(3):
            assert (await running.reload()).errors == ("cannot be read: no answer within 0 s",)
    assert threading.active_count() <= threads + 1
    await running.until_loading()
    assert running.loads == 1

    monkeypatch.setattr(proxy.reload, "READ_TIMEOUT", 10)
    running.before_load.set()
    assert (await running.reload(BASE + "log.level: debug\n")).changed == ("log.level",)


@pytest.fixture
def authority(tmp_path):
    authority = Authority(tmp_path)
    authority.issue("a")
    return authority


@pytest.fixture
def site(authority, tmp_path):
    """A configuration with a listener that terminates TLS."""
    text = (
        "broker.id: 1\nlisteners:\n- {name: TLS, bind: '127.0.0.1:1', upstream: '127.0.0.1:2', "
        "security.protocol: SSL, tls: {ssl.certificate.location: a.crt, ssl.key.location: a.key}}\n"
    )
    running = Running(tmp_path, text)
    running.time = time.time()
    return running


@pytest.mark.promise("tls.md", "A reload takes a pair of certificate and key as a whole, or not at all.")
async def test_another_pair_is_noticed_and_applied_and_half_of_one_is_rejected(authority, site):
    monitor = site.reloader._file
    assert not monitor.has_changed()
    authority.issue("a")
    assert not monitor.has_changed()  # they may be half-written
    assert monitor.has_changed()
    result = await site.reload()
    assert result.result == "applied"
    assert result.changed == tuple(f"listeners[0].tls.ssl.{name}.location" for name in ("certificate", "key"))

    file = site.path.parent / "a.key"
    key = file.read_text()
    authority.issue("a")
    new_key = file.read_text()
    file.write_text(key)
    with capture_logs():
        result = await site.reload()
    assert result.result == "rejected"
    assert "is not the key of ssl.certificate.location" in result.errors[0]
    assert len(site.applied) == 1
    file.write_text(new_key)
    monitor.has_changed()
    assert monitor.has_changed()
    assert (await site.reload()).result == "applied"

    authority.issue("a", days=-0.5)
    for name in ("TLS", "NEW"):
        with capture_logs():
            (error,) = (await site.reload(site.path.read_text().replace("name: TLS", f"name: {name}"))).errors
        assert error.startswith("listeners[0].tls.ssl.certificate.location: has expired at")
    assert len(site.applied) == 2
