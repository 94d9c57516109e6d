"""Fetching jars with the real Ivy, from a repository on loopback that does what a test says."""

import hashlib
import http.server
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from proxy.errors import LocalError
from proxy.local.fetchers import MIRROR
from proxy.local.jars import provide, resolve
from proxy.local.pins import Pin
from tests.integration.conftest import free_port


def pin(name: str) -> Pin:
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
            def do_GET(self) -> None:
                name = self.path.split("/")[-1].split("-")[0]
                status, content = repository.spoil(name, name.encode() * 1000)
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command == "GET":
                    repository.served.append(name)
                    self.wfile.write(content)

            def do_HEAD(self) -> None:
                self.do_GET()

            def log_message(self, format: str, *args: object) -> None:
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"


@pytest.fixture
def repository(monkeypatch):
    repository = Repository()
    with repository.server:
        threading.Thread(target=repository.server.serve_forever, daemon=True).start()
        monkeypatch.setenv(MIRROR, repository.url)
        yield repository
        repository.server.shutdown()


def fetch(folder: Path, *pins: Pin, verify: bool = False) -> list[Path]:
    return provide(pins or (THING,), folder, progress=False, verify=verify)


@pytest.mark.promise("dependencies.md", "Jars are fetched once; a cache that has them needs no network, no Java.")
def test_jars_are_fetched_once_and_damaged_ones_again(repository, tmp_path, monkeypatch):
    pins = [pin(name) for name in ("flipped", "truncated", "removed", "whole")]
    files = fetch(tmp_path, *pins)
    assert [file.name for file in files] == [f"{name}-1.0.jar" for name in ("flipped", "removed", "truncated", "whole")]
    assert files[3].read_bytes() == b"whole" * 1000
    with monkeypatch.context() as patch:
        patch.setenv(MIRROR, f"http://127.0.0.1:{free_port()}/")
        patch.setenv("PATH", str(tmp_path / "empty"))
        patch.delenv("JAVA_HOME", raising=False)
        assert fetch(tmp_path, *reversed(pins)) == fetch(tmp_path, *pins, verify=True) == files
    assert sorted(repository.served) == ["flipped", "removed", "truncated", "whole"]

    flip(files[0])
    files[1].unlink()
    os.truncate(files[2], 10)
    repository.served.clear()
    fetch(tmp_path, *pins)
    assert sorted(repository.served) == ["flipped", "removed", "truncated"]
    before = files[3].stat()
    flip(files[3])
    os.utime(files[3], (before.st_atime, before.st_mtime))  # without a trace
    fetch(tmp_path, *pins, verify=True)
    assert repository.served[3:] == ["whole"]
    assert [file.read_bytes()[:5] for file in files] == [file.name.encode()[:5] for file in files]


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)


@pytest.mark.promise("dependencies.md", "A jar with another checksum than the pinned one is refused.")
def test_a_jar_that_is_wrong_or_not_there_fails_and_the_next_run_recovers(repository, tmp_path):
    repository.spoil = lambda name, content: (200, content[::-1])
    with pytest.raises(LocalError, match=r"org.example:thing:1.0 as fetched has the checksum"):
        fetch(tmp_path)
    assert list(tmp_path.glob("*.jar")) == []
    repository.spoil = lambda name, content: (404, b"") if name == "thing" else (200, content)
    with pytest.raises(LocalError, match=r"does not serve org.example:thing:1.0"):
        fetch(tmp_path, THING, OTHER)
    repository.spoil = lambda name, content: (503, b"")
    with pytest.raises(LocalError, match="the repository failed while"):
        fetch(tmp_path)
    repository.spoil = lambda name, content: (200, content)
    repository.served.clear()
    with ThreadPoolExecutor(2) as pool:  # two at once fetch once
        first, second = pool.map(lambda _: fetch(tmp_path, THING, OTHER), range(2))
    assert first == second
    assert repository.served == ["thing"], "what came before a failure stays"
    assert sorted(file.name for file in tmp_path.iterdir()) == [".lock", "other-1.0.jar", "thing-1.0.jar"]


@pytest.mark.promise("install.md", "Another repository or cache of jars that cannot be used is named.")
def test_a_repository_or_a_cache_that_cannot_be_used_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv(MIRROR, f"http://127.0.0.1:{free_port()}/")
    with pytest.raises(LocalError, match=r"cannot be reached; .* continues where it stopped"):
        fetch(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(LocalError, match=r"cannot keep jars in .*: Not a directory; .* BROKERSIDE_CACHE"):
        fetch(tmp_path / "file")
    with pytest.raises(LocalError, match=r"named 'kafka-1.0'; there are kafka-4.3.1, "):
        resolve("kafka-1.0")
