"""Commands of the sidecar: run it, and ask one that runs."""

from __future__ import annotations

import gc
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.commands.arguments import add_admin, add_config, add_output, command
from proxy.commands.output import encode_value
from proxy.commands.watching import show

if TYPE_CHECKING:
    from proxy.admin_client import LastApplied
    from proxy.commands.arguments import Commands
    from proxy.config import Endpoint


def add(commands: Commands) -> None:
    """Put them on the command line."""
    made = command(commands, "run", run)
    add_config(made)
    said = "Take over from the sidecar that runs, without refusing a connection (docs/restart.md)."
    made.add_argument("--takeover", action="store_true", help=said)
    made = commands.add_parser("worker")  # without help, it is not listed
    made.set_defaults(act=worker)
    made.add_argument("descriptor", type=int)
    made = command(commands, "check-config", check_config)
    add_config(made)
    add_admin(command(commands, "reload", reload))
    made = command(commands, "quotas", quotas)
    add_admin(made)
    made.add_argument("--watch", action="store_true", help="Once a second, until Ctrl-C.")
    add_output(made, ("table", "json", "yaml"))
    made = command(commands, "connections", connections)
    made.add_argument("action", nargs="*", metavar="close ID", help="Close this one, instead of listing.")
    add_admin(made)
    for name, meaning in CONNECTION_FILTERS.items():
        made.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=f"Only those {meaning}.")
    made.add_argument("--limit", type=int, default=100, metavar="N", help="At most so many; default: 100.")
    made.add_argument("--watch", action="store_true", help="Once a second with rates, until Ctrl-C.")
    add_output(made, ("table", "json", "yaml"))

    made = command(commands, "top", top, extra="query")
    add_admin(made)
    made.add_argument("--by", choices=GROUPINGS, default=GROUPINGS[0], help="What clients are added up by.")
    made.add_argument("--sort", choices=SORT_COLUMNS, default=SORT_COLUMNS[0], help="What comes first.")
    made.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help="Between two samples; default: 2.")


GROUPINGS = ("principal", "client_id", "client_ip", "group_id", "listener")
SORT_COLUMNS = ("requests", "bytes-in", "bytes-out", "connections", "in-flight")

CONNECTION_FILTERS = {
    "listener": "of this listener",
    "client_ip": "from this address",
    "principal": "of this principal, as User:alice",
    "client_id": "with this client id",
    "group_id": "of this group",
    "transactional_id": "with this transactional id",
}


def run(config: Path, takeover: bool = False) -> int:
    """Run the sidecar until SIGTERM."""
    for number in (signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # until there is something to reload or to replace
    with lean():
        from proxy.config import load
        from proxy.reload import ConfigFileMonitor
        from proxy.run import run as run_sidecar
        from proxy.telemetry import configure_logging

        file = ConfigFileMonitor(config)  # before it is read: what is written from here on is noticed
        loaded = load(config)
    configure_logging(loaded.log_level, loaded.log_format)
    return run_sidecar(file, loaded, takeover=takeover)


def worker(descriptor: int) -> int:
    """Run one worker process of a sidecar. Only ``proxy.net.worker_process`` starts it.

    ``descriptor``: the socket to the main process.
    """
    with lean():
        from proxy.net.worker import run_worker

    return run_worker(descriptor)


@contextmanager
def lean() -> Iterator[None]:
    """For imports of a process that starts often and then lasts.

    Modules stay, so there is no looking for garbage among them, now (40 ms) or while traffic flows (40 ms each time).
    structlog takes rich where it is installed, for consoles: 60 ms and 5 MiB that a sidecar does not need.
    """
    hidden = "rich" not in sys.modules
    if hidden:
        sys.modules["rich"] = None  # type: ignore[assignment]  # to the import system: there is none
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        if hidden:
            del sys.modules["rich"]


def check_config(config: Path) -> None:
    """Check a configuration, and report all errors at once."""
    from proxy.config import load
    from proxy.config.keys import format_path
    from proxy.config.tls_files import certificate_problems
    from proxy.errors import LocalError
    from proxy.net.data_plane import check_observers

    loaded = load(config)
    try:
        check_observers(loaded)
    except LocalError as error:
        raise LocalError(f"{config}: {error}") from error
    listeners = ", ".join(f"{listener.name} {listener.bind} -> {listener.upstream}" for listener in loaded.listeners)
    print(f"{config}: ok, broker {loaded.broker_id}, {listeners}")
    for path, problem in certificate_problems(loaded, time.time()).items():
        print(f"brokerside: {config}: {format_path(path)}: {problem}", file=sys.stderr)
    if loaded.quotas_unread is not None:
        said = "the cluster's quotas do not count here, and may limit the sidecar itself"
        print(f"brokerside: {config}: {said}: {loaded.quotas_unread}", file=sys.stderr)


def quotas(admin: Endpoint, watch: bool, output: str) -> None:
    """Show the limits on connections of a running sidecar: how much is used, who waits, the busiest addresses."""
    from proxy import admin_client
    from proxy.quotas_view import format_text

    def text() -> str:
        found = admin_client.get_quotas(admin)
        return format_text(found) if output == "table" else encode_value(found, output)

    show(text, watch, output)


def top(admin: Endpoint, by: str, sort: str, interval: float) -> None:
    """Show who uses a running sidecar: talkers, requests, errors, latencies; live in a terminal, once when piped."""
    from proxy.top_screen import show

    show(admin, by, sort, interval)


def connections(action: list[str], admin: Endpoint, limit: int, watch: bool, output: str, **wanted: str | None) -> None:
    """Show the open connections of a running sidecar, the last active first, or close one of them."""
    from proxy import admin_client
    from proxy.connections_view import counts_of, format_text
    from proxy.errors import LocalError

    if action:
        if len(action) != 2 or action[0] != "close":
            raise LocalError(f"connections {' '.join(action)}: the only action is: close ID")
        print(f"closed {admin_client.post_close_connection(admin, action[1])}")
        return
    query = {name: value for name, value in wanted.items() if value is not None} | {"limit": str(limit)}
    before: dict[str, tuple[int, int, int]] | None = None
    at = 0.0

    def text() -> str:
        nonlocal before, at
        found = admin_client.get_connections(admin, query)
        now = time.time()
        if output != "table":
            return encode_value(found, output)
        shown = format_text(found, now, before, max(now - at, 0.001))
        if watch:
            before, at = counts_of(found), now
        return shown

    show(text, watch, output)


APPLIED_BY = {"file": "when the file changed", "SIGHUP": "by SIGHUP", "admin": "by a reload"}
"""How the reason of a reload is said to a person."""


def _last_applied(change: LastApplied | None) -> str:
    if change is None:
        return "nothing was applied since the sidecar started"
    at = datetime.fromtimestamp(change.at, UTC)
    ago = max(0.0, time.time() - change.at)
    when = f"{at:%Y-%m-%d %H:%M:%S} UTC, {ago:.0f} s ago" if ago < 600 else f"{at:%Y-%m-%d %H:%M:%S} UTC"
    how = APPLIED_BY.get(change.reason, change.reason)
    return f"last applied, {how} ({when}): {', '.join(change.changed)}"


def reload(admin: Endpoint) -> int:
    """Reload the configuration of a running sidecar, and report what was applied."""
    from proxy import admin_client

    done = admin_client.post_reload(admin)
    if done.result == "applied":
        print("applied:")
        print("".join(f"  {key}: {old} -> {new}\n" for key, old, new in done.changes), end="")
    elif done.result == "unchanged":
        print(f"unchanged: what runs is what the file says; {_last_applied(done.last_applied)}")
    elif done.result == "draining":
        print(f"brokerside: the sidecar at {admin} is shutting down", file=sys.stderr)
        return 1
    else:
        print("brokerside: rejected, the running configuration stays", file=sys.stderr)
        print("".join(f"  {error}\n" for error in done.errors), end="", file=sys.stderr)
        return 1
    return 0
