"""A real Prometheus, and the rules of ``deploy/prometheus/`` with minutes as seconds."""

import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.running import until
from tests.integration.conftest import free_port
from tests.tools import fetched

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
RULES, CASES = FOLDER / "brokerside.rules.yaml", FOLDER / "brokerside.test.yaml"

SHORTENED = {"5m": "10s", "15m": "60s", "1h": "60s"}
"""What stands for the windows and offsets in the rules."""

FOR = "2s"


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def shortened_rules() -> str:
    """Return the rules as YAML, with which no test waits for minutes."""
    text = re.sub(r"for: \w+", f"for: {FOR}", RULES.read_text())
    return re.sub(r"(\[|offset )(\w+)", lambda found: found[1] + SHORTENED[found[2]], text)


def program(name: str) -> tuple[Path, dict[str, str]]:
    """Return the path of ``prometheus`` or ``promtool`` and its environment. Skips the test where there is none."""
    try:
        path, unpacked = fetched.debian(name, ["prometheus"])
    except fetched.MissingError as missing:
        pytest.skip(f"no Prometheus: {missing}")
    return path, os.environ | fetched.environment_of(unpacked)


class Prometheus:
    def __init__(self, address: str) -> None:
        self._address = address

    def error(self, query: str) -> str | None:
        """Return what is wrong with a query; None if nothing is."""
        try:
            urllib.request.urlopen(self._url("query?" + urllib.parse.urlencode({"query": query})), timeout=10).close()
        except urllib.error.HTTPError as refused:
            return str(json.load(refused)["error"])
        return None

    def ask(self, query: str) -> list[dict[str, Any]]:
        """Return the series of an instant query; none if there is no answer."""
        found = self._get("query?" + urllib.parse.urlencode({"query": query}))
        return [] if found is None else list(found["result"])

    def value_of(self, query: str) -> float:
        """Return the value of the only series of an instant query; 0 if there is none."""
        return sum(float(one["value"][1]) for one in self.ask(query))

    def exemplars(self, query: str) -> list[dict[str, Any]]:
        parameters = {"query": query, "start": time.time() - 60, "end": time.time()}
        found = self._get("query_exemplars?" + urllib.parse.urlencode(parameters)) or []
        return [one for series in found for one in series["exemplars"]]

    def firing(self) -> dict[str, dict[str, str]]:
        """Return the annotations of each alert that fires, by its name."""
        found = self._get("alerts") or {"alerts": []}
        return {one["labels"]["alertname"]: one["annotations"] for one in found["alerts"] if one["state"] == "firing"}

    def _url(self, path: str) -> str:
        return f"http://{self._address}/api/v1/{path}"

    def _get(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(self._url(path), timeout=10) as response:
                return json.load(response)["data"]
        except OSError:
            return None


@contextmanager
def scraping(
    folder: Path, targets: dict[str, str], rule_file: str = "groups: []\n", features: tuple[str, ...] = ()
) -> Iterator[Prometheus]:
    """Run one that scrapes ``targets`` (host:port/path by job) each second and evaluates ``rule_file`` as often."""
    path, environment = program("prometheus")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rules.yaml").write_text(rule_file)
    jobs = []
    for job, target in targets.items():
        address, _, metrics_path = target.partition("/")
        jobs.append(
            {
                "job_name": job,
                "metrics_path": f"/{metrics_path or 'metrics'}",
                "static_configs": [{"targets": [address]}],
            }
        )
    settings = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": jobs,
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(settings))
    address = f"127.0.0.1:{free_port()}"
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [path, "--config.file=prometheus.yaml", "--storage.tsdb.path=data", f"--web.listen-address={address}",
             f"--enable-feature={','.join(features)}"],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
        )  # fmt: skip
    try:
        made = Prometheus(address)
        until(lambda: len(made.ask("up == 1")) == len(targets), "everything is scraped")
        yield made
    finally:
        process.terminate()
        process.wait(30)
