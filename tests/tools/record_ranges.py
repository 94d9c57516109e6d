"""Records what real brokers answer to ApiVersions: ``python -m tests.tools.record_ranges``, half a minute.

It starts one broker of each version after another and writes ``tests/golden/api-versions.json``: for each of them the
first and the last version by api key, as they came.
"""

from __future__ import annotations

import json
import socket
import struct
import tempfile
from pathlib import Path

from proxy.local import cluster

FILE = Path(__file__).parents[1] / "golden" / "api-versions.json"
VERSIONS = ("3.9.2", "4.3.1", "4.4.0")

Ranges = dict[int, tuple[int, int]]


def ask(address: str) -> Ranges:
    """Send ApiVersions v0 and return what comes. Raises OSError."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as client, client.makefile("rb") as answers:
        client.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
        (size,) = struct.unpack(">i", answers.read(4))
        correlation_id, error, _count = struct.unpack_from(">ihi", body := answers.read(size))
        assert (correlation_id, error) == (1, 0)
        return {key: (low, high) for key, low, high in struct.iter_unpack(">hhh", body[10:])}


def recorded() -> dict[str, Ranges]:
    """Return what was recorded, by version of Kafka."""
    return {
        version: {int(key): (low, high) for key, (low, high) in found.items()}
        for version, found in json.loads(FILE.read_text()).items()
    }


def _record() -> None:
    found = {}
    for version in VERSIONS:
        with tempfile.TemporaryDirectory() as folder:
            state = cluster.up(Path(folder), kafka_version=version, advertise="broker")
            try:
                found[version] = ask(state.nodes[0].upstream)
            finally:
                cluster.down(Path(folder))
    lines = (f'  "{version}": {json.dumps(ranges)}' for version, ranges in found.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    _record()
