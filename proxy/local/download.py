"""Fetching pinned jars with an ordinary client: Ivy, which every pyspark wheel carries, or else ``mvn`` on PATH.

Both are asked for exactly the pinned files; no POM is read and nothing transitive is resolved. What they fetch is
checked against its pin before it gets its name in the cache, so a half-written or foreign jar is never seen there.
"""

from __future__ import annotations

import hashlib
import importlib.util
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
from xml.sax.saxutils import quoteattr

from proxy.errors import LocalError
from proxy.local.java import java
from proxy.local.pins import Pin

CLIENTS = 3
"""Ivy processes at the same time: hides the latency of the repository; more only cost CPU."""

STALL = 90.0
"""Seconds without a new byte after which a download is given up."""

POLL = 0.1
STAMP = 946_684_800
"""Modification time of a jar in the cache (2000-01-01): set once its checksum has been verified, so that any later
write shows. It also stays the same when a jar is fetched again, which class-data archives depend on."""

MIRROR = "BROKERSIDE_MAVEN_REPOSITORY"
"""Environment variable with the root URL of a Maven repository to use in place of the client's default."""

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
    """Fetch ``pins`` into ``folder``; ``on_jar`` is told of each one when it is there, checked and complete.

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
    """Take over jars until the clients have ended; return the pins they did not bring."""
    seen, since = -1, time.monotonic()
    while missing:
        # Asked first: what a client wrote just before it ended is still looked at below.
        ended = all(client.process.poll() is not None for client in clients)
        for pin in list(missing):
            for client in clients:
                if adopt(client.jars / pin.file_name, pin, folder, final=ended):
                    missing.remove(pin)
                    on_jar(pin)
                    break
        if ended:
            break
        written = sum(file.stat().st_size for client in clients for file in _files(client.jars))
        if written != seen:
            seen, since = written, time.monotonic()
        elif time.monotonic() - since > STALL:
            raise LocalError(f"no byte of {missing[0].coordinates} came for {STALL:.0f} s; {_network_advice()}")
        time.sleep(POLL)
    return missing


def _files(folder: Path) -> Iterator[Path]:
    # A client may rename a file between the listing and the look at it.
    return (file for file in folder.glob("*.jar*") if file.exists())


def adopt(source: Path, pin: Pin, folder: Path, *, final: bool) -> bool:
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
    partial = folder / f".{pin.file_name}.part"
    partial.write_bytes(content)
    os.utime(partial, (STAMP, STAMP))
    partial.replace(folder / pin.file_name)
    return True


@contextmanager
def _clients(pins: Sequence[Pin], work: Path) -> Iterator[list[_Client]]:
    """Run as many clients as are useful, each with its share of ``pins``; end them on the way out."""
    runtime = java()
    ivy = find_ivy()
    maven = shutil.which("mvn")
    if ivy is None and maven is None:
        raise LocalError(
            "jars are fetched with the Ivy of pyspark or with Maven, and there is neither: "
            "run `pip install 'brokerside[spark]'`, or put `mvn` on PATH"
        )
    clients = []
    with ExitStack() as stack:
        for number in range(min(CLIENTS if ivy else 1, len(pins))):
            share = work / str(number)
            (share / "jars").mkdir(parents=True)
            command = (
                _ivy_command(runtime, ivy, pins[number::CLIENTS], share) if ivy else _maven_command(maven, pins, share)
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


def find_ivy() -> Path | None:
    """Return the Ivy of the installed pyspark, None where there is none."""
    found = importlib.util.find_spec("pyspark")
    for place in (found and found.submodule_search_locations) or ():
        for jar in sorted(Path(place).glob("jars/ivy-*.jar")):
            return jar
    return None


def _ivy_command(java: Path, ivy: Path, pins: Sequence[Pin], share: Path) -> list[str]:
    mirror = os.environ.get(MIRROR)
    root = f" root={quoteattr(mirror)}" if mirror else ""
    settings, module = share / "settings.xml", share / "ivy.xml"
    settings.write_text(
        "<ivysettings>"
        '<property name="ivy.checksums" value=""/>'  # ours are stronger, and these cost a round trip for each jar
        '<settings defaultResolver="repository"/>'
        f"<caches defaultCacheDir={quoteattr(str(share / 'cache'))} repositoryCacheDir={quoteattr(str(share))}"
        ' artifactPattern="jars/[artifact]-[revision].[ext]"/>'
        '<timeout-constraints><timeout-constraint name="bounded" connectionTimeout="15000" readTimeout="60000"/>'
        "</timeout-constraints>"
        '<resolvers><ibiblio name="repository" m2compatible="true" usepoms="false" timeoutConstraint="bounded"'
        f"{root}/></resolvers>"
        "</ivysettings>"
    )
    wanted = "".join(
        f'<dependency org="{pin.group}" name="{pin.artifact}" rev="{pin.version}" transitive="false"'
        f' conf="default-&gt;*"><artifact name="{pin.artifact}" type="jar" ext="jar"/></dependency>'
        for pin in pins
    )
    module.write_text(
        '<ivy-module version="2.0"><info organisation="brokerside" module="jars"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{wanted}</dependencies></ivy-module>'
    )
    quick = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return [str(java), *quick, "-jar", str(ivy), "-settings", str(settings), "-ivy", str(module), "-confs", "default"]


def _maven_command(maven: str | None, pins: Sequence[Pin], share: Path) -> list[str]:
    mirror = os.environ.get(MIRROR)
    # `central` is the name under which Maven knows its default repository, for jars and for plugins.
    place = f"<id>central</id><url>{mirror}</url>"
    repositories = (
        f"<repositories><repository>{place}</repository></repositories>"
        f"<pluginRepositories><pluginRepository>{place}</pluginRepository></pluginRepositories>"
        if mirror
        else ""
    )
    items = "".join(
        f"<artifactItem><groupId>{pin.group}</groupId><artifactId>{pin.artifact}</artifactId>"
        f"<version>{pin.version}</version></artifactItem>"
        for pin in pins
    )
    pom = share / "pom.xml"
    pom.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>brokerside</groupId><artifactId>jars</artifactId>"
        f"<version>1</version><packaging>pom</packaging>{repositories}<build><plugins><plugin>"
        "<groupId>org.apache.maven.plugins</groupId><artifactId>maven-dependency-plugin</artifactId>"
        f"<configuration><artifactItems>{items}</artifactItems>"
        f"<outputDirectory>{share / 'jars'}</outputDirectory></configuration></plugin></plugins></build></project>"
    )
    return [maven or "mvn", "--batch-mode", "--no-transfer-progress", "--file", str(pom), "dependency:copy"]


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
    names = ", ".join(pin.coordinates for pin in missing[:3]) + (" and others" if len(missing) > 3 else "")
    return f"the repository does not have {names}; if {MIRROR} is set, see that it is the root of a whole mirror"


def _network_advice() -> str:
    return (
        "see to the network (a proxy: JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=… -Dhttps.proxyPort=…'; "
        f"a mirror: {MIRROR}), then run the command again: it goes on where it stopped"
    )


def _megabytes(pins: Sequence[Pin]) -> int:
    return sum(pin.size for pin in pins) // 1_000_000 + 1
