"""What ships is what is locked and tested, and its licences are known ones."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyspark
import pytest

from proxy.local.jars import SETS
from tests.deploy.podman import Podman, jobs, podman, sidecar

FOLDER = Path(__file__).parents[2] / "deploy" / "sbom"
LOCKS = Path(__file__).parents[2] / "deploy" / "locks"
JARS = {"runtime": (), "jobs": SETS["spark-4.2.0"]}

ALLOWED = {"Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "0BSD", "PSF-2.0", "Zlib", "CC0-1.0", "MPL-2.0"}
"""All are permissive, but the last one: it asks for the source of its own files, which ship as they are."""

ALLOWED_OF_JARS = {"EPL-2.0", "CDDL-1.0", "CDDL-1.1", "Unicode-3.0"}
"""Further ones in Spark's own distribution; those of EPL and CDDL ask for the same as MPL."""

NAMED = {
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: BSD License": "BSD-3-Clause",
}
UNSAID = {"protobuf": "BSD-3-Clause"}
"""Packages that say it in a file alone."""


def versions(name: str) -> dict[str, str]:
    """Return the version of each package in a lock; of several by Python's version, the one for the newest."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", (LOCKS / name).read_text(), re.MULTILINE))


def components(name: str, kind: str) -> list[dict[str, Any]]:
    found = json.loads((FOLDER / f"{name}.cdx.json").read_text())["components"]
    return [one for one in found if one["purl"].startswith(f"pkg:{kind}/")]


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.promise("install.md", "The images have the versions that the tests run with.")
def test_the_images_get_the_versions_that_the_tests_have() -> None:
    some = {"runtime": {"uvloop", "confluent-kafka", "pydantic"}, "jobs": {"pyspark", "deltalake", "msgspec"}}
    tested = versions("dev.txt")
    for name, packages in some.items():
        shipped = versions(f"{name}.txt")
        assert packages <= shipped.keys()
        assert {package: tested.get(package) for package in shipped} == shipped


@pytest.mark.promise("install.md", "The list of what ships has every locked package, and every jar.")
def test_the_list_of_what_ships_is_the_lock_with_its_jars() -> None:
    for name, pins in JARS.items():
        packages = {normalized(one["name"]): one["version"] for one in components(name, "pypi")}
        assert packages == versions(f"{name}.txt"), "make sbom"
        found = {
            (one["group"], one["name"], one["version"], one["hashes"][0]["content"])
            for one in components(name, "maven")
        }
        pinned = {(pin.group, pin.artifact, pin.version, pin.sha256) for pin in pins}
        assert pinned <= found, "make sbom"
        inside = {f"{artifact}-{version}.jar": sha256 for _, artifact, version, sha256 in found - pinned}
        expected = checksums((Path(pyspark.__file__).parent / "jars").glob("*.jar")) if name == "jobs" else {}
        assert inside == expected, "make sbom"


def checksums(jars: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of each by the name of its file."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in jars}


@pytest.mark.promise("dependencies.md", "Every package and jar that ships has a licence that is allowed.")
def test_each_package_has_a_licence_that_is_allowed() -> None:
    for name in JARS:
        for kind, allowed in (("pypi", ALLOWED), ("maven", ALLOWED | ALLOWED_OF_JARS)):
            for component in components(name, kind):
                said = set()
                for one in component.get("licenses", []):
                    text = one.get("expression") or one["license"].get("id") or one["license"]["name"]
                    said |= set(re.split(r" (?:AND|OR) ", NAMED.get(text, text)))
                said = said or {UNSAID[component["name"]]}
                assert said <= allowed, component["name"]


@pytest.mark.deploy
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "build"), [("runtime", sidecar), ("jobs", jobs)])
@pytest.mark.promise("install.md", "Each image has the packages and jars of its list, and the list itself.")
def test_the_image_has_what_the_list_says_and_the_list_itself(name: str, build: Callable[[Podman], str]) -> None:
    images = podman()
    with images.mounted(build(images)) as root:
        packages = (root / "opt/brokerside").rglob("*.dist-info/METADATA")
        texts = [path.read_text() for path in packages]
        found = {
            normalized(re.findall(r"^Name: (.*)$", text, re.MULTILINE)[0]): re.findall(
                r"^Version: (.*)$", text, re.MULTILINE
            )[0]
            for text in texts
        }
        found.pop("brokerside")
        assert found == versions(f"{name}.txt")
        jars = components(name, "maven")
        listed = {f"{one['name']}-{one['version']}.jar": one["hashes"][0]["content"] for one in jars}
        # The Python package py4j, which is listed, has a jar too.
        assert checksums((root / "opt/brokerside").rglob("jars/**/*.jar")) == listed
        shipped = (root / "usr/share/doc/brokerside/sbom.cdx.json").read_text()
        assert shipped == (FOLDER / f"{name}.cdx.json").read_text()
        assert (root / "usr/share/doc/brokerside/LICENSE").exists()
