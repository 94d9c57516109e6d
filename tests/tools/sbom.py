"""Writes what ships as CycloneDX documents into ``deploy/sbom/``: ``python -m tests.tools.sbom`` (``make sbom``).

Each is made from an environment with exactly what its lock has; that of the jobs also has the jars inside of pyspark,
and those beside it, from their pins.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from proxy.local.jars import SETS
from tests.tools import spark_jars
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


def sbom(name: str) -> str:
    """Return the document of what ``<name>.txt`` locks."""
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
        jars = list(spark_jars.components(packages)) if (packages / "pyspark").exists() else []
    document: dict[str, Any] = json.loads(said)
    document["components"] = sorted(document["components"], key=lambda one: str(one["name"]))
    for component in document["components"]:
        component.pop("externalReferences", None)
    document["components"] += jars
    for pin in sorted(JARS.get(name, ())):
        licence = POM_LICENCES[pin.group]
        document["components"].append(spark_jars.component(pin.group, pin.artifact, pin.version, pin.sha256, licence))
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def main() -> int:
    """Write every document."""
    for name in ("runtime", "jobs"):
        path = FOLDER / f"{name}.cdx.json"
        path.write_text(sbom(name))
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
