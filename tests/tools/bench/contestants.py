"""Who is measured: each a proxy on one CPU, from a port of loopback to the broker behind it."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import yaml

from proxy import __version__
from proxy.errors import LocalError
from tests.tools import fetched
from tests.tools.bench.measure import awaiting, family, pinned

START_TIMEOUT = 180.0
"""Seconds; a sidecar needs about one, and many times that on a busy machine."""

GET_TIMEOUT = 60.0
"""Seconds; as above."""

STOP_TIMEOUT = 15.0
AUDIT = "observers.audit:AuditObserver"

TLS_PAIR = "tls.pair"
"""Key of ``Wiring.keys``: the file with a certificate and its key, of a peer that is to terminate TLS."""


@dataclass(frozen=True)
class Wiring:
    """Where one process belongs. ``audit``: bootstrap of the cluster with the audit topic. ``keys``: for brokerside."""

    folder: Path
    listen: int
    upstream: int
    admin: int
    audit: str = ""
    keys: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    arguments: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    version: str = ""


@dataclass(frozen=True)
class Contestant:
    """``command`` writes its configuration, or raises MissingError; None: clients dial the broker itself.
    ``scenarios``: of one that differs from another only there; empty: all that take it."""

    name: str
    title: str
    command: Callable[[Wiring], Command] | None
    audited: bool = False
    scenarios: tuple[str, ...] = ()

    @property
    def ours(self) -> bool:
        return self.name.startswith("brokerside")


class Running:
    """A started contestant. Between measurements it is stopped with SIGSTOP, so that it takes no CPU from another."""

    def __init__(self, contestant: Contestant, wiring: Wiring, cpus: Collection[int]) -> None:
        """Start it and wait until it accepts. Raises MissingError, or LocalError with the end of its log."""
        self.contestant = contestant
        self.wiring = wiring
        self.port = wiring.listen
        self.start_ms = 0.0
        self.version = ""
        self._process: subprocess.Popen[bytes] | None = None
        if contestant.command is None:
            self.port = wiring.upstream
            return
        wiring.folder.mkdir(parents=True, exist_ok=True)
        command = contestant.command(wiring)
        self.version = command.version
        self._log = wiring.folder / "log"
        with self._log.open("wb") as log, pinned(cpus):
            begun = time.monotonic()
            self._process = subprocess.Popen(
                command.arguments,
                env=os.environ | command.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=wiring.folder,
            )
        try:
            self._wait_accepting(begun)
        except BaseException:
            self.stop()
            raise

    @property
    def pids(self) -> list[int]:
        return family(self._process.pid) if self._process else []

    @property
    def alive(self) -> bool:
        return self._process is None or self._process.poll() is None

    def pause(self) -> None:
        """Give it no CPU until ``resume``."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def get(self, path: str) -> str:
        """What a sidecar of ours answers at its admin address. Raises LocalError."""
        url = f"http://127.0.0.1:{self.wiring.admin}{path}"
        with (
            awaiting(f"{path} of {self.contestant.name} within {GET_TIMEOUT:.0f} s"),
            urllib.request.urlopen(url, timeout=GET_TIMEOUT) as answer,
        ):
            return str(answer.read().decode())

    def counted(self, name: str) -> float:
        """Sum of the samples of a metric. Raises LocalError."""
        lines = (line.rpartition(" ") for line in self.get("/metrics").splitlines() if not line.startswith("#"))
        return sum(float(value) for sample, _, value in lines if sample.partition("{")[0] == name)

    def stop(self) -> None:
        if self._process is None:
            return
        self.resume()
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        assert self._process is not None
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _wait_accepting(self, begun: float) -> None:
        assert self._process is not None
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    self.start_ms = (time.monotonic() - begun) * 1000
                    return
            code = self._process.poll()
            if code is not None or time.monotonic() - begun > START_TIMEOUT:
                tail = self._log.read_text(errors="replace").splitlines()[-5:]
                what = f"still does not listen after {START_TIMEOUT:.0f} s" if code is None else f"ended with {code}"
                raise LocalError(f"{self.contestant.name} {what}; its log ends with: {' / '.join(tail)}")
            time.sleep(0.002)


def listener(name: str, bind: str, upstream: str, **keys: object) -> dict[str, object]:
    return {"name": name, "bind": bind, "upstream": upstream, "security.protocol": "PLAINTEXT", **keys}


def _brokerside(wiring: Wiring, *, audited: bool) -> Command:
    keys: dict[str, object] = {
        "broker.id": 1,
        "listeners": [listener("CLIENT", f"127.0.0.1:{wiring.listen}", f"127.0.0.1:{wiring.upstream}")],
        "admin": {"bind": f"127.0.0.1:{wiring.admin}"},
        "log.level": "warning",
    }
    if audited:
        keys |= {
            "internal.bootstrap.servers": wiring.audit,
            "observer.class.names": [AUDIT],
            "audit": {"topic": f"audit-{wiring.folder.name}"},
        }
    config = wiring.folder / "sidecar.yaml"
    config.write_text(yaml.safe_dump(keys | wiring.keys, sort_keys=False))
    return Command([sys.executable, "-m", "proxy", "run", "-c", str(config)], version=__version__)


def _haproxy(wiring: Wiring, *, newer: bool = False, tuned: str = "", option: str = "") -> Command:
    if newer:
        command, environment = fetched.newer_debian("haproxy", ["haproxy"]), {}
    else:
        program, root = fetched.debian("haproxy", ["haproxy"])
        command, environment = [str(program)], fetched.environment_of(root)
    config = wiring.folder / "haproxy.cfg"
    config.write_text(f"""global
  nbthread 1
  maxconn {_descriptors() // 2 - 100}
  {tuned}
defaults
  mode tcp
  {option}
  timeout connect 5s
  timeout client 1h
  timeout server 1h
listen kafka
  bind 127.0.0.1:{wiring.listen} backlog 4096{f" ssl crt {wiring.keys[TLS_PAIR]}" if TLS_PAIR in wiring.keys else ""}
  server broker 127.0.0.1:{wiring.upstream}
""")
    version = fetched.said_version([*command, "-v"], r"version (\S+)", environment)
    return Command([*command, "-db", "-f", str(config)], environment, version)


def _haproxy_splicing(wiring: Wiring) -> Command:
    pipes = "maxpipes 64"  # by default one for every fourth connection there may be, which takes descriptors
    # With splice-auto instead of these two, HAProxy 2.6 makes no call of splice at all for these loads.
    return _haproxy(wiring, tuned=pipes, option="option splice-request\n  option splice-response")


def _descriptors() -> int:
    """Files that a process may open, as far as a benchmark needs them."""
    return min(20_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _nginx(wiring: Wiring) -> Command:
    program, root = fetched.debian("nginx", ["nginx", "libnginx-mod-stream"])
    module = (root or Path("/")) / "usr/lib/nginx/modules/ngx_stream_module.so"
    config = wiring.folder / "nginx.conf"
    pair = wiring.keys.get(TLS_PAIR)
    lines = (" ssl", "ssl_protocols TLSv1.2 TLSv1.3", f"ssl_certificate {pair}", f"ssl_certificate_key {pair}")
    tls = "" if pair is None else ";\n    ".join(lines)
    config.write_text(f"""load_module {module};
daemon off;
worker_processes 1;
pid nginx.pid;
error_log error.log warn;
{"user root root;" if os.geteuid() == 0 else ""}
events {{ worker_connections {_descriptors()}; }}
stream {{
  server {{
    listen 127.0.0.1:{wiring.listen} backlog=4096{tls};
    proxy_pass 127.0.0.1:{wiring.upstream};
    proxy_timeout 1h;
  }}
}}
""")
    version = fetched.said_version([str(program), "-v"], r"nginx/(\S+)")
    return Command([str(program), "-p", str(wiring.folder), "-c", str(config), "-e", "error.log"], version=version)


def _kafka_proxy(wiring: Wiring) -> Command:
    program = fetched.go("kafka-proxy", "github.com/grepplabs/kafka-proxy")
    mapping = f"127.0.0.1:{wiring.upstream},127.0.0.1:{wiring.listen}"
    return Command(
        [
            str(program), "server", "--bootstrap-server-mapping", mapping, "--dynamic-listeners-disable",
            "--http-disable", "--log-level", "error",
        ],
        version=_go_version(program),
    )  # fmt: skip


def _toxiproxy(wiring: Wiring) -> Command:
    program = fetched.go("toxiproxy", "github.com/Shopify/toxiproxy/v2/cmd/server")
    config = wiring.folder / "toxiproxy.json"
    ends = {"listen": f"127.0.0.1:{wiring.listen}", "upstream": f"127.0.0.1:{wiring.upstream}"}
    config.write_text(json.dumps([{"name": "kafka", "enabled": True, **ends}]))
    arguments = ["-host", "127.0.0.1", "-port", str(wiring.admin), "-config", str(config)]
    return Command([str(program), *arguments], {"LOG_LEVEL": "error"}, _go_version(program))


def _go_version(program: Path) -> str:
    return fetched.said_version(["go", "version", "-m", str(program)], r"\tmod\t\S+\t(\S+)")


BULK = ("produce", "fetch")
BYTES = ("small", *BULK, "paced", "storm")

CONTESTANTS = (
    Contestant("direct", "no proxy", None),
    Contestant("haproxy", "HAProxy, mode tcp", _haproxy),
    Contestant("haproxy-3", "HAProxy 3, mode tcp", partial(_haproxy, newer=True), scenarios=BYTES),
    Contestant("haproxy-64k", "HAProxy, 64 KiB buffers", partial(_haproxy, tuned="tune.bufsize 65536"), scenarios=BULK),
    Contestant("haproxy-splice", "HAProxy, splice", _haproxy_splicing, scenarios=BULK),
    Contestant("nginx", "nginx stream", _nginx),
    Contestant("kafka-proxy", "kafka-proxy (grepplabs)", _kafka_proxy),
    Contestant("toxiproxy", "toxiproxy", _toxiproxy),
    Contestant("brokerside", "brokerside, no observer", partial(_brokerside, audited=False)),
    Contestant("brokerside-audit", "brokerside, audit on", partial(_brokerside, audited=True), audited=True),
)
"""In the order of the report."""
