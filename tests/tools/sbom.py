"""Writes what ships as CycloneDX documents into ``deploy/sbom/``: ``python -m tests.tools.sbom`` (``make sbom``).

Each is made from an environment with exactly what its lock has; that of the jobs also has the jars inside of pyspark,
and those beside it, from their pins. Licences of jars are those that Spark itself names, in the LICENSE of its wheel.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from proxy.local.jars import SETS
from tests.tools.environment import made

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "sbom"
LOCKS = ROOT / "deploy" / "locks"
IMAGE_PYTHON = "3.13"
"""That of the images' Debian; some locked versions depend on it."""

JARS = {"jobs": SETS["spark-4.2.0"]}
"""Sets of jars that ship beside the packages of a lock."""

POM_LICENCES = {
    "org.apache.commons": "Apache-2.0",
    "org.apache.kafka": "Apache-2.0",
    "org.apache.spark": "Apache-2.0",
}
"""What the POMs of these jars say, by group."""


SPDX = {
    "Apache License Version 2.0": "Apache-2.0",
    "BSD 0-Clause": "0BSD",
    "BSD 2-Clause": "BSD-2-Clause",
    "BSD 3-Clause": "BSD-3-Clause",
    "MIT License": "MIT",
    "Common Development and Distribution License (CDDL) 1.0": "CDDL-1.0",
    "Common Development and Distribution License (CDDL) 1.1": "CDDL-1.1",
    "Eclipse Distribution License (EDL) 1.0": "BSD-3-Clause",
    "Eclipse Public License (EPL) 2.0": "EPL-2.0",
    "Unicode/ICU License": "Unicode-3.0",
}
"""Identifiers of the headings in Spark's LICENSE, the first of which has none."""

UNLISTED = {
    "failureaccess": ("com.google.guava", "Apache-2.0"),
    "vertx-uri-template": ("io.vertx", "EPL-2.0 OR Apache-2.0"),
}
"""Group and licence by the jar's own manifest, or by the POM of its project, where Spark's LICENSE says nothing."""

Listed = dict[str, list[tuple[str, str]]]
"""Group and licence by artifact."""


def sbom(name: str) -> str:
    uv = Path(sys.executable).parent / "uv"
    with tempfile.TemporaryDirectory() as folder:
        environment, packages = Path(folder) / "environment", Path(folder) / "packages"
        python = environment / "bin" / "python"
        target = ("--python", python, "--python-version", IMAGE_PYTHON, "--target", packages)
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, environment], check=True)
        subprocess.run(
            [uv, "pip", "install", "--quiet", *target, "--require-hashes", "-r", LOCKS / f"{name}.txt"], check=True
        )
        [site] = environment.glob("lib/*/site-packages")
        (site / "packages.pth").write_text(f"{packages}\n")
        said = subprocess.run(
            [made("deploy") / "bin/cyclonedx-py", "environment", "--output-reproducible", "--short-PURLs",
             "--pyproject", ROOT / "pyproject.toml", python],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        jars = list(components(packages)) if (packages / "pyspark").exists() else []
    document: dict[str, Any] = json.loads(said)
    document["components"] = sorted(document["components"], key=lambda one: str(one["name"]))
    for component in document["components"]:
        component.pop("externalReferences", None)
    document["components"] += jars
    for pin in sorted(JARS.get(name, ())):
        licence = POM_LICENCES[pin.group]
        document["components"].append(component(pin.group, pin.artifact, pin.version, pin.sha256, licence))
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def component(group: str, name: str, version: str, sha256: str, licence: str) -> dict[str, Any]:
    """Return one jar; ``licence``: an SPDX expression."""
    purl = f"pkg:maven/{group}/{name}@{version}"
    return {
        "bom-ref": purl,
        "type": "library",
        "group": group,
        "name": name,
        "version": version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": sha256}],
        "licenses": [{"expression": licence}],
    }


def listed(text: str) -> Listed:
    found: Listed = {}
    heading, line_before = next(iter(SPDX)), ""
    for line in text.splitlines():
        if re.fullmatch("-+", line) and line_before:
            heading = line_before
        elif jar := re.match(r"([\w.-]+):([\w.-]+)(?::jar|\s|$)", line):
            found.setdefault(jar[2], []).append((jar[1], SPDX[heading]))
        line_before = line.strip()
    return found


def components(packages: Path) -> Iterator[dict[str, Any]]:
    """Yield each jar of the pyspark in ``packages``, by name. Raises KeyError for one without a licence."""
    [text] = packages.glob("pyspark-*.dist-info/licenses/LICENSE")
    known = listed(text.read_text())
    for path in sorted((packages / "pyspark" / "jars").glob("*.jar")):
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        names = [name for name in known if re.match(rf"{re.escape(name)}-\d", path.stem)]
        own = re.match(r"(.+?)-\d", path.stem)
        assert own is not None
        name = max(names, key=len, default=own[1])
        version = path.stem.removeprefix(f"{name}-")
        if name.startswith("spark-"):
            group, licence = "org.apache.spark", "Apache-2.0"
        elif name in UNLISTED:
            group, licence = UNLISTED[name]
        else:
            group, licence = _one(path, name, known[name])
        yield component(group, name, version, sha256, licence)


def _one(path: Path, name: str, candidates: list[tuple[str, str]]) -> tuple[str, str]:
    """Return the candidate of which the jar has the POM, if there are several."""
    if len(candidates) > 1:
        with zipfile.ZipFile(path) as jar:
            inside = jar.namelist()
        candidates = [one for one in candidates if f"META-INF/maven/{one[0]}/{name}/pom.xml" in inside]
    [found] = candidates
    return found


def main() -> int:
    for name in ("runtime", "jobs"):
        path = FOLDER / f"{name}.cdx.json"
        path.write_text(sbom(name))
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
