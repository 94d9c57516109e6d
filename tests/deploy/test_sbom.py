"""What ships is what is locked, and its licences are known ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from proxy.local.jars import SETS
from tests.deploy.podman import podman
from tests.deploy.test_locks import versions

FOLDER = Path(__file__).parents[2] / "deploy" / "sbom"
JARS = {"runtime": (), "jobs": SETS["spark-4.2.0"]}

ALLOWED = {"Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "0BSD", "PSF-2.0", "Zlib", "CC0-1.0", "MPL-2.0"}
"""All are permissive, but the last one: it asks for the source of its own files, which ship as they are."""

NAMED = {
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: BSD License": "BSD-3-Clause",
}
UNSAID = {"protobuf": "BSD-3-Clause"}
"""Packages that say it in a file alone."""


def components(name: str, kind: str) -> list[dict[str, Any]]:
    found = json.loads((FOLDER / f"{name}.cdx.json").read_text())["components"]
    return [one for one in found if one["purl"].startswith(f"pkg:{kind}/")]


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("name", JARS)
def test_the_list_of_what_ships_is_the_lock(name: str) -> None:
    found = {normalized(one["name"]): one["version"] for one in components(name, "pypi")}
    assert found == versions(f"{name}.txt"), "make sbom"


@pytest.mark.parametrize("name", JARS)
def test_jars_are_listed_with_the_checksums_of_their_pins(name: str) -> None:
    found = {
        (one["group"], one["name"], one["version"], one["hashes"][0]["content"]) for one in components(name, "maven")
    }
    assert found == {(pin.group, pin.artifact, pin.version, pin.sha256) for pin in JARS[name]}, "make sbom"


@pytest.mark.parametrize("name", JARS)
def test_each_package_has_a_licence_that_is_allowed(name: str) -> None:
    for component in components(name, "pypi"):
        said = set()
        for one in component.get("licenses", []):
            text = one.get("expression") or one["license"].get("id") or one["license"]["name"]
            said |= set(re.split(r" (?:AND|OR) ", NAMED.get(text, text)))
        said = said or {UNSAID[component["name"]]}
        assert said <= ALLOWED, component["name"]


@pytest.mark.deploy
@pytest.mark.timeout(900)
def test_the_image_has_what_the_list_says_and_the_list_itself() -> None:
    images = podman()
    with images.mounted(images.build("deploy/image/Containerfile", "localhost/brokerside")) as root:
        packages = (root / "opt/brokerside").rglob("*.dist-info/METADATA")
        texts = [path.read_text() for path in packages]
        found = {
            normalized(re.findall(r"^Name: (.*)$", text, re.MULTILINE)[0]): re.findall(
                r"^Version: (.*)$", text, re.MULTILINE
            )[0]
            for text in texts
        }
        found.pop("brokerside")
        assert found == versions("runtime.txt")
        assert (root / "usr/share/doc/brokerside/sbom.cdx.json").read_text() == (
            FOLDER / "runtime.cdx.json"
        ).read_text()
        assert (root / "usr/share/doc/brokerside/LICENSE").exists()
