"""The Compose file: valid, in agreement with the images, and its brokers and sidecars started from what it says."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import AdminClient

from proxy.local.ports import free_ports
from tests.deploy import podman as built
from tests.deploy import prometheus
from tests.deploy.lab import host, lab, localized
from tests.deploy.podman import BASE, DESCRIPTORS, Podman, podman
from tests.deploy.running import output_of, transfer, until
from tests.tools.environment import made

PUBLISHED = re.compile(r"127\.0\.0\.1:(\d+):")
"""A port of this machine, in a service's `ports`."""

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "compose"
NUMBERS = (1, 2, 3)
NAMES = {f"kafka-{number}": host(number) for number in NUMBERS}

COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]


def containerfile(name: str) -> str:
    return (ROOT / "deploy" / "image" / name).read_text()


@pytest.mark.slow
def test_it_is_what_the_specification_allows() -> None:
    output_of(
        made("deploy") / "bin/check-jsonschema", "--builtin-schema", "vendor.compose-spec", FOLDER / "compose.yaml"
    )


@pytest.mark.promise("install.md", "The Compose file runs the images read-only, without any capability.")
def test_it_agrees_with_the_images() -> None:
    for service, name in (
        *((f"sidecar-{number}", "Containerfile") for number in NUMBERS),
        ("jobs", "jobs.Containerfile"),
    ):
        found, text = SERVICES[service], containerfile(name)
        assert found["build"] == {"context": "../..", "dockerfile": f"deploy/image/{name}"}
        assert found["user"] == re.findall(r"^USER (\S+)$", text, re.MULTILINE)[-1]
        [volume] = re.findall(r"^VOLUME (\S+)$", text, re.MULTILINE)
        assert any(mount.endswith(f":{volume}") for mount in found["volumes"])
        assert (found["read_only"], found["cap_drop"]) == (True, ["ALL"])
        assert found["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(300)
@pytest.mark.promise("install.md", "The Compose file starts three brokers, and a sidecar before each.")
def test_its_brokers_and_sidecars_start(tmp_path: Path) -> None:
    """Each service on an address of its own in the place of a network of its own."""
    files = {}
    for number in NUMBERS:
        environment = SERVICES[f"kafka-{number}"]["environment"]
        settings = {
            name.removeprefix("KAFKA_").lower().replace("_", "."): str(value)
            for name, value in environment.items()
            if name.startswith("KAFKA_")
        }
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        files[number] = local(text, number)
    with lab(tmp_path / "lab") as site:
        site.start_brokers(files)
        config = (FOLDER / "sidecar/brokerside.yaml").read_text()
        sidecars = []
        for number in NUMBERS:
            environment = SERVICES[f"sidecar-{number}"]["environment"]
            own = {
                "broker.id": int(environment["BROKERSIDE_BROKER_ID"]),
                "listeners": yaml.safe_load(environment["BROKERSIDE_LISTENERS"]),
            }
            text = config.replace(f"hosts: [{', '.join(NAMES)}]", "hosts: []") + yaml.safe_dump(own)
            sidecars.append(site.start_sidecar(number, local(text, number)))
        bootstrap = f"{host(1)}:9092"
        assert len(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).brokers) == len(NUMBERS)
        transfer(bootstrap, "orders")
        for sidecar in sidecars:
            until(lambda s=sidecar: s.metric("brokerside_audit_delivered_total") > 0, "each delivers events")


def local(text: str, number: int) -> str:
    """Each published port of localhost is the client port of one broker."""
    published = {SERVICES[f"kafka-{n}"]["ports"][0].split(":")[1]: n for n in NUMBERS}
    for port, n in published.items():
        text = text.replace(f"localhost:{port}", f"{host(n)}:9092")
    return localized(text, number, NAMES)


@pytest.mark.deploy
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.promise("install.md", "Brokers, sidecars, Prometheus and the jobs of the Compose file run as containers.")
def test_its_services_run_as_containers() -> None:
    """All but Grafana, whose image cannot be had everywhere; those of Kafka and Prometheus have stand-ins."""
    images = podman()
    program, _ = prometheus.program("prometheus")
    kafka, options = built.kafka(images)
    sidecar, jobs = built.sidecar(images), built.jobs(images)
    numbers = PUBLISHED.findall((FOLDER / "compose.yaml").read_text())
    ports = dict(zip(numbers, free_ports(len(numbers)), strict=True))

    def moved(text: str) -> str:
        for number, port in ports.items():
            text = text.replace(f"localhost:{number}", f"localhost:{port}")
        return PUBLISHED.sub(lambda found: f"127.0.0.1:{ports[found[1]]}:", text)

    with composed(images, moved) as site:
        for number in NUMBERS:
            site.start(f"kafka-{number}", kafka, *options)
        for number in NUMBERS:
            site.start(f"sidecar-{number}", sidecar)
        healthy = SERVICES["sidecar-1"]["healthcheck"]["test"]
        assert healthy[0] == "CMD"
        for number in NUMBERS:
            until(lambda n=number: images.succeeds("exec", f"sidecar-{n}", *healthy[1:]), f"sidecar-{number}", 180)
        bootstrap = ",".join(f"localhost:{ports[SERVICES[f'kafka-{n}']['ports'][0].split(':')[1]]}" for n in NUMBERS)
        assert len(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).brokers) == len(NUMBERS)
        transfer(bootstrap, "orders")
        assert (site.volume("kafka-1") / "meta.properties").exists()

        site.start("prometheus", BASE, "--volume", f"{program}:/bin/prometheus:ro", command=["/bin/prometheus"])
        scraping = prometheus.Prometheus(f"127.0.0.1:{ports['9090']}")
        until(lambda: len(scraping.ask('up{job="brokerside"} == 1')) == len(NUMBERS), "each sidecar is scraped")

        site.start("jobs", jobs)
        log = site.volume("tables") / "tables" / "traffic" / "_delta_log"
        until(lambda: list(log.glob("*.json")), "the jobs write tables", 600)


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
