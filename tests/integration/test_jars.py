"""Fetching jars with the real Ivy, from a repository on loopback that does what a test says."""

from __future__ import annotations

import hashlib
import http.server
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from proxy.errors import LocalError
from proxy.local.fetchers import MIRROR
from proxy.local.jars import cache_dir, provide, resolve
from proxy.local.pins import Pin
from tests.integration.conftest import free_port


def pin(name: str) -> Pin:
    """The jar ``name``, as the repository serves it when all is well."""
    content = name.encode() * 1000
    return Pin("org.example", name, "1.0", hashlib.sha256(content).hexdigest(), len(content))


THING, OTHER = pin("thing"), pin("other")


class Repository:
    """Files by path; ``spoil`` may change what is answered: status and content."""

    def __init__(self) -> None:
        self.spoil: Callable[[str, bytes], tuple[int, bytes]] = lambda name, content: (200, content)
        self.served: list[str] = []
        repository = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.answer(body=False)

            def do_GET(self) -> None:
                self.answer(body=True)

            def answer(self, *, body: bool) -> None:
                name = self.path.split("/")[-1].split("-")[0]
                status, content = repository.spoil(name, name.encode() * 1000)
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if body:
                    repository.served.append(name)
                    self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    repository = Repository()
    with repository.server:
        threading.Thread(target=repository.server.serve_forever, daemon=True).start()
        monkeypatch.setenv(MIRROR, repository.url)
        yield repository
        repository.server.shutdown()


def fetch(folder: Path, *pins: Pin, verify: bool = False) -> list[Path]:
    return provide(pins or (THING,), folder, progress=False, verify=verify)


def test_jars_are_fetched_once_and_sorted(repository: Repository, tmp_path: Path) -> None:
    files = fetch(tmp_path, THING, OTHER)
    assert [file.name for file in files] == ["other-1.0.jar", "thing-1.0.jar"]
    assert files[1].read_bytes() == b"thing" * 1000
    assert fetch(tmp_path, OTHER, THING) == files
    assert sorted(repository.served) == ["other", "thing"]


def test_a_warm_cache_needs_neither_network_nor_java(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = fetch(tmp_path)
    monkeypatch.setenv(MIRROR, f"http://127.0.0.1:{free_port()}/")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert fetch(tmp_path) == files
    assert fetch(tmp_path, verify=True) == files


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)


def flip_silently(file: Path) -> None:
    before = file.stat()
    flip(file)
    os.utime(file, (before.st_atime, before.st_mtime))


@pytest.mark.parametrize(
    ("damage", "verify"),
    [
        (flip, False),
        (lambda file: os.truncate(file, 10), False),
        (lambda file: file.unlink(), False),
        (flip_silently, True),
    ],
    ids=["flipped", "truncated", "removed", "flipped without a trace"],
)
def test_a_damaged_jar_is_fetched_again(
    repository: Repository, tmp_path: Path, damage: Callable[[Path], None], verify: bool
) -> None:
    damage(fetch(tmp_path)[0])
    (file,) = fetch(tmp_path, verify=verify)
    assert file.read_bytes() == b"thing" * 1000
    assert repository.served == ["thing", "thing"]


def test_another_file_is_refused_and_the_next_run_recovers(repository: Repository, tmp_path: Path) -> None:
    repository.spoil = lambda name, content: (200, content[::-1])
    with pytest.raises(LocalError, match=r"org.example:thing:1.0 as fetched has the checksum"):
        fetch(tmp_path)
    assert list(tmp_path.glob("*.jar")) == []
    repository.spoil = lambda name, content: (200, content)
    assert len(fetch(tmp_path)) == 1


def test_what_came_before_a_failure_stays(repository: Repository, tmp_path: Path) -> None:
    repository.spoil = lambda name, content: (404, b"") if name == "thing" else (200, content)
    with pytest.raises(LocalError, match=r"does not serve org.example:thing:1.0"):
        fetch(tmp_path, THING, OTHER)
    repository.spoil = lambda name, content: (200, content)
    repository.served.clear()
    fetch(tmp_path, THING, OTHER)
    assert repository.served == ["thing"]
    assert sorted(file.name for file in tmp_path.iterdir()) == [".lock", "other-1.0.jar", "thing-1.0.jar"]


def test_a_repository_that_fails(repository: Repository, tmp_path: Path) -> None:
    repository.spoil = lambda name, content: (503, b"")
    with pytest.raises(LocalError, match="the repository failed while"):
        fetch(tmp_path)


def test_a_repository_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MIRROR, f"http://127.0.0.1:{free_port()}/")
    with pytest.raises(LocalError, match=r"cannot be reached; .* continues where it stopped"):
        fetch(tmp_path)


def test_two_at_once_fetch_once(repository: Repository, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: fetch(tmp_path), range(2))
    assert first == second
    assert repository.served == ["thing"]


def test_a_cache_that_cannot_be_written_to(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LocalError, match=r"cannot keep jars in .*: Not a directory; .* BROKERSIDE_CACHE"):
        fetch(tmp_path / "file")


def test_an_unknown_set_is_refused_with_the_known_ones() -> None:
    with pytest.raises(LocalError, match=r"named 'kafka-1.0'; there are kafka-4.3.1, "):
        resolve("kafka-1.0")


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("BROKERSIDE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "brokerside"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "brokerside"
    monkeypatch.setenv("BROKERSIDE_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
