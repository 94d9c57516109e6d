"""The Compose file: valid, in agreement with the images, and its brokers and sidecars started from what it says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import AdminClient

from proxy.cli import _parser
from tests.deploy.lab import host, lab, localized
from tests.deploy.running import transfer, until
from tests.tools.environment import made

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "compose"
NUMBERS = (1, 2, 3)
NAMES = {f"kafka-{number}": host(number) for number in NUMBERS}

COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]


def containerfile(name: str) -> str:
    return (ROOT / "deploy" / "image" / name).read_text()


def test_it_is_what_the_specification_allows() -> None:
    check = [
        made("deploy") / "bin/check-jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        FOLDER / "compose.yaml",
    ]
    done = subprocess.run(check, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("service", "name"),
    [*((f"sidecar-{number}", "Containerfile") for number in NUMBERS), ("jobs", "jobs.Containerfile")],
)
def test_it_agrees_with_the_image(service: str, name: str) -> None:
    found, text = SERVICES[service], containerfile(name)
    assert found["build"] == {"context": "../..", "dockerfile": f"deploy/image/{name}"}
    assert found["user"] == re.findall(r"^USER (\S+)$", text, re.MULTILINE)[-1]
    [volume] = re.findall(r"^VOLUME (\S+)$", text, re.MULTILINE)
    assert any(mount.endswith(f":{volume}") for mount in found["volumes"])
    assert (found["read_only"], found["cap_drop"]) == (True, ["ALL"])
    assert found["security_opt"] == ["no-new-privileges:true"]


def test_files_that_it_mounts_are_there() -> None:
    mounts = [mount for service in SERVICES.values() for mount in service.get("volumes", [])]
    own = {mount.split(":")[0] for mount in mounts if mount.startswith(".")}
    assert own
    assert [path for path in own if not (FOLDER / path).exists()] == []
    assert {mount.split(":")[0] for mount in mounts if not mount.startswith(".")} == COMPOSE["volumes"].keys()


def test_the_command_of_the_jobs_is_one_that_there_is() -> None:
    arguments = vars(_parser().parse_args(SERVICES["jobs"]["command"]))
    assert arguments["bootstrap_servers"] == ",".join(f"kafka-{number}:19094" for number in NUMBERS)


def test_prometheus_scrapes_each_sidecar_under_a_name_that_it_answers_to() -> None:
    scraped = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())["scrape_configs"][0]["static_configs"][0][
        "targets"
    ]
    config = yaml.safe_load((FOLDER / "sidecar/brokerside.yaml").read_text())
    port = config["admin"]["bind"].rpartition(":")[2]
    assert scraped == [f"{name}:{port}" for name in config["admin"]["hosts"]]


@pytest.mark.kafka
@pytest.mark.timeout(300)
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
