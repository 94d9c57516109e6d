"""Fetching pinned jars, and checking each against its pin before it gets its name in the cache.

So a half-written or foreign jar is never seen there, and an interrupted download continues with what it has.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from proxy.errors import LocalError
from proxy.local.fetchers import MIRROR, find_ivy, ivy_command, maven_command
from proxy.local.java import java
from proxy.local.pins import Pin

PARALLEL_CLIENTS = 3
"""Ivy processes at the same time: hides the latency of the repository; more only cost CPU."""

STALL_TIMEOUT = 90.0
"""Seconds without a new byte after which a download is given up."""

DOWNLOAD_POLL_INTERVAL = 0.1
VERIFIED_MTIME = 946_684_800
"""Modification time of a jar in the cache (2000-01-01): set once its checksum has been verified, so that any later
write shows. It also stays the same when a jar is fetched again, which class-data archives depend on."""

_UNREACHABLE = (
    "UnknownHostException",
    "ConnectException",
    "NoRouteToHostException",
    "SocketException",
    "SocketTimeoutException",
    "Unknown host",
    "Connection refused",
    "Connect timed out",
    "Network is unreachable",
)


@dataclass(frozen=True)
class _Client:
    """One running Ivy or Maven: where it puts jars, and where it writes what it says."""

    process: subprocess.Popen[bytes]
    jars: Path
    output: Path


def download(pins: Sequence[Pin], folder: Path, on_jar: Callable[[Pin], None]) -> None:
    """Fetch ``pins`` into ``folder``; ``on_jar`` is called with each one when it is complete and checked.

    The caller holds the folder's lock. Raises LocalError; what was complete by then stays.
    """
    for abandoned in folder.glob(".fetch-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder, ignore_cleanup_errors=True) as work:
        with _clients(pins, Path(work)) as clients:
            missing = _collect(list(pins), clients, folder, on_jar)
        if missing:
            said = "\n".join(client.output.read_text(errors="replace") for client in clients)
            raise LocalError(explain(said, missing))


def _collect(missing: list[Pin], clients: Sequence[_Client], folder: Path, on_jar: Callable[[Pin], None]) -> list[Pin]:
    """Copy jars to the cache until the clients have ended; return the pins that they did not fetch."""
    seen, since = -1, time.monotonic()
    while missing:
        # Asked first: what a client wrote just before it ended is still looked at below.
        ended = all(client.process.poll() is not None for client in clients)
        for pin in list(missing):
            for client in clients:
                if copy_if_pinned(client.jars / pin.file_name, pin, folder, final=ended):
                    missing.remove(pin)
                    on_jar(pin)
                    break
        if ended:
            break
        written = sum(_size(file) for client in clients for file in client.jars.glob("*.jar*"))
        if written != seen:
            seen, since = written, time.monotonic()
        elif time.monotonic() - since > STALL_TIMEOUT:
            raise LocalError(f"no byte of {missing[0].coordinates} came for {STALL_TIMEOUT:.0f} s; {_network_advice()}")
        time.sleep(DOWNLOAD_POLL_INTERVAL)
    return missing


def _size(file: Path) -> int:
    # A client may rename a file between the listing and the read.
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def copy_if_pinned(source: Path, pin: Pin, folder: Path, *, final: bool) -> bool:
    """Copy ``source`` into the cache under its pin's name if it is that jar; return whether it was.

    Raises LocalError where it is another one and nobody writes to it any more (``final``).
    """
    try:
        content = source.read_bytes()
    except FileNotFoundError:
        return False
    found = hashlib.sha256(content).hexdigest()
    if found != pin.sha256:
        if final:
            raise LocalError(
                f"{pin.coordinates} as fetched has the checksum {found[:16]}… ({len(content)} bytes) in place of "
                f"{pin.sha256[:16]}… ({pin.size} bytes); the repository, or something before it, served another file"
            )
        return False
    # A copy, because the client that wrote it may not have done with it.
    checked = source.with_suffix(".checked")
    checked.write_bytes(content)
    os.utime(checked, (VERIFIED_MTIME, VERIFIED_MTIME))
    checked.replace(folder / pin.file_name)
    return True


@contextmanager
def _clients(pins: Sequence[Pin], work: Path) -> Iterator[list[_Client]]:
    """Run as many clients as are useful, each with its share of ``pins``; end them on the way out."""
    ivy, runtime = find_ivy(), java()
    clients = []
    with ExitStack() as stack:
        for number in range(min(PARALLEL_CLIENTS if ivy else 1, len(pins))):
            share = work / str(number)
            (share / "jars").mkdir(parents=True)
            command = (
                ivy_command(runtime, ivy, pins[number::PARALLEL_CLIENTS], share) if ivy else maven_command(pins, share)
            )
            output = share / "output"
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stack.enter_context(output.open("wb")),
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            stack.callback(_end, process)
            clients.append(_Client(process, share / "jars", output))
        yield clients


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)  # mvn is a shell script around its JVM
    process.wait()


def explain(said: str, missing: Sequence[Pin]) -> str:
    """Return one sentence for a person from what the clients ``said`` before they ended without ``missing``."""
    first = missing[0].coordinates
    if "No space left on device" in said:
        return (
            f"the disk is full; {_megabytes(missing)} MB of jars are still to come, or set BROKERSIDE_CACHE elsewhere"
        )
    if "PKIX path building failed" in said or "SSLHandshakeException" in said or "trustAnchors" in said:
        return (
            f"Java does not trust the TLS certificate of the repository that has {first}; if a proxy here inspects "
            "TLS, name a truststore with its certificate: "
            "JAVA_TOOL_OPTIONS='-Djavax.net.ssl.trustStore=FILE -Djavax.net.ssl.trustStorePassword=…'"
        )
    if any(sign in said for sign in _UNREACHABLE) or "proxy server that is not well configured" in said:
        return f"the repository that has {first} cannot be reached; {_network_advice()}"
    if "SERVER ERROR" in said or "FAILED DOWNLOADS" in said:
        return f"the repository failed while {first} was fetched; run the command again: it continues where it stopped"
    names = ", ".join(pin.coordinates for pin in missing[:3]) + (" and others" if len(missing) > 3 else "")
    return f"the repository does not serve {names}; if {MIRROR} is set, see that it is a whole mirror and open to you"


def _network_advice() -> str:
    return (
        "see to the network (a proxy: JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=… -Dhttps.proxyPort=…'; "
        f"a mirror: {MIRROR}), then run the command again: it continues where it stopped"
    )


def _megabytes(pins: Sequence[Pin]) -> int:
    return sum(pin.size for pin in pins) // 1_000_000 + 1
