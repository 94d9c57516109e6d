"""TLS 1.3 clients that change their keys in the middle of traffic (KeyUpdate, RFC 8446, 4.6.3).

Python's ``ssl`` cannot ask for that, ``openssl s_client`` can: it takes a line that begins with ``k`` (change my keys)
or ``K`` (change yours, too) as that command, where one read of its input begins with it.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import os
import shutil
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.frames import METADATA, request, response
from tests.integration.peer import Reader, Writer, read_frame
from tests.integration.tls_bench import TlsBench, silent_sidecar, tls_bench  # noqa: F401

OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="openssl(1) is not installed, and Python cannot change keys")

BODY = bytes(byte for byte in range(256) if byte not in b"kKQR") * 120
"""30 kB. Without the letters of commands: any byte may be the first of a read."""


class OpensslClient:
    """``openssl s_client``: what is written to ``commands`` it sends, what it receives is in ``received``."""

    def __init__(self, commands: int, received: Reader) -> None:
        self._commands = commands
        self.received = received

    async def send(self, data: bytes) -> None:
        """Write ``data``, and wait until the client has read it: so what follows is read by itself."""
        while data:
            data = data[os.write(self._commands, data[:4096]) :]
            while self._unread():  # noqa: ASYNC110  # a pipe has no event for that
                await asyncio.sleep(0.001)

    def _unread(self) -> int:
        size = array.array("i", [0])
        fcntl.ioctl(self._commands, termios.FIONREAD, size)
        return size[0]


@asynccontextmanager
async def openssl_client(running: TlsBench, messages: Path) -> AsyncIterator[OpensslClient]:
    """``messages``: a file for the list of the messages of TLS."""
    assert OPENSSL is not None
    reading, writing = os.pipe()
    client = await asyncio.create_subprocess_exec(
        OPENSSL, "s_client", "-connect", f"127.0.0.1:{running.port}", "-servername", "localhost", "-tls1_3",
        "-CAfile", running.authority.ca, "-verify_return_error", "-quiet", "-no_ign_eof", "-msg",
        "-msgfile", messages, stdin=reading, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    os.close(reading)
    try:
        assert client.stdout is not None
        yield OpensslClient(writing, client.stdout)
    finally:
        os.close(writing)
        with contextlib.suppress(ProcessLookupError):
            client.kill()
        await client.wait()


async def echo(reader: Reader, writer: Writer) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            frame = await read_frame(reader)
            writer.write((len(frame) - 10).to_bytes(4, "big") + frame[8:12] + frame[14:])


@pytest.mark.promise("tls.md", "A client of TLS 1.3 may change its keys at any time, and ask the sidecar to.")
async def test_requests_and_responses_pass_unchanged(tmp_path: Path) -> None:
    rounds = 10
    for command in (b"k", b"K"):
        messages = tmp_path / f"messages-{command.decode()}"
        async with tls_bench(tmp_path, echo) as running, openssl_client(running, messages) as client:
            for number in range(rounds):
                frame = request(METADATA, 1, number, BODY, client_id=None)
                half = len(frame) // 2
                for part in (frame[:half], command, frame[half:]):
                    await client.send(part)
                assert await read_frame(client.received) == response(number, BODY), command
            await running.until(lambda: len(running.exchanges) == rounds)  # called at once
            assert [one.correlation_id for one in running.exchanges] == list(range(rounds))
            assert running.counters.closed == {}
        updates = [line[:3] for line in messages.read_text().splitlines() if "KeyUpdate" in line]
        assert updates.count(">>>") == rounds
        assert updates.count("<<<") == (rounds if command == b"K" else 0)
