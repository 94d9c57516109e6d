"""The jars inside of the pyspark wheel, as components of a CycloneDX document.

Licences are those that Spark itself names, in the LICENSE of its wheel.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    """Read Spark's LICENSE."""
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
