"""Services of the Compose file as containers, with its values, on a network of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.podman import DESCRIPTORS, Podman

FOLDER = Path(__file__).parents[2] / "deploy" / "compose"
NETWORK, PREFIX = "brokerside-compose", "10.213.77"
OPTIONS = {
    "user": "--user",
    "mem_limit": "--memory",
    "pids_limit": "--pids-limit",
    "cap_drop": "--cap-drop",
    "security_opt": "--security-opt",
    "tmpfs": "--tmpfs",
}
"""Of ``podman run``, by what means the same in the file."""

PODMANS = {"nofile": DESCRIPTORS, "nproc": 30_000}
"""Limits whose default of Podman's may be more than this machine allows."""


class Composed:
    """``services``: of the file."""

    def __init__(self, images: Podman, services: dict[str, Any]) -> None:
        self.images = images
        self.services = services
        self.addresses = {name: f"{PREFIX}.{10 + number}" for number, name in enumerate(services)}

    def start(self, service: str, image: str, *options: object, command: Sequence[str] = ()) -> None:
        """Start a service with another image. ``command``: in the place of the image's entry point."""
        found = self.services[service]
        arguments = [*(command[:1] and ("--entrypoint", command[0])), *options]
        mode = found.get("network_mode")
        if mode is None:
            arguments += ["--network", NETWORK, "--ip", self.addresses[service]]
            arguments += [part for name, ip in self.addresses.items() for part in ("--add-host", f"{name}:{ip}")]
        else:
            arguments += ["--network", f"container:{mode.removeprefix('service:')}"]
        for key, option in OPTIONS.items():
            values = found.get(key, [])
            arguments += [part for one in (values if isinstance(values, list) else [values]) for part in (option, one)]
        limits = PODMANS | found.get("ulimits", {})
        arguments += [f"--ulimit={name}={value}:{value}" for name, value in limits.items()]
        arguments += ["--read-only", "--read-only-tmpfs=false"] if found.get("read_only") else []
        arguments += [
            part for name, value in found.get("environment", {}).items() for part in ("--env", f"{name}={value}")
        ]
        arguments += [part for port in found.get("ports", ()) for part in ("--publish", port)]
        for mount in found.get("volumes", ()):
            source, _, rest = mount.partition(":")
            path = (FOLDER / source).resolve() if source.startswith(".") else f"{NETWORK}-{source}"
            arguments += ["--volume", f"{path}:{rest}"]
        self.images("run", "--detach", "--name", service, *arguments, image, *command[1:], *found.get("command", ()))

    def volume(self, name: str) -> Path:
        """Return the folder with the files of a volume."""
        return Path(self.images("volume", "inspect", "--format", "{{.Mountpoint}}", f"{NETWORK}-{name}"))


@contextmanager
def composed(images: Podman, localized: Callable[[str], str]) -> Iterator[Composed]:
    """Everything that is started in it is removed. ``localized``: changes addresses in the file's text."""
    made = Composed(images, yaml.safe_load(localized((FOLDER / "compose.yaml").read_text()))["services"])
    images("network", "create", "--subnet", f"{PREFIX}.0/24", NETWORK)
    try:
        yield made
    finally:
        for service in reversed(made.services):
            if images("ps", "--all", "--quiet", "--filter", f"name=^{service}$"):
                print(service, images("logs", "--tail", "5", service), sep="\n")
                images("rm", "--force", "--time", "30", service)
        images("network", "rm", NETWORK)
        for volume in images("volume", "ls", "--quiet", "--filter", f"name={NETWORK}-").split():
            images("volume", "rm", volume)
