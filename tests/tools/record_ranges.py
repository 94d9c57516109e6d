"""Records what real brokers answer to ApiVersions: ``python -m tests.tools.record_ranges``, half a minute.

It starts one broker of each version after another and writes ``tests/golden/api-versions.json``: for each of them the
first and the last version by api key, as they came; and ``api-versions-bodies.json``: the bodies of its responses of
versions 3 to 5, in hexadecimal, as they came and as the sidecar rewrites them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from proxy.core.apis import API_VERSIONS
from proxy.core.encode import encode
from proxy.core.schema import layout
from proxy.features.catalog import SUPPORTED, LevelRange
from proxy.features.view import FeaturesDirectory, FeaturesView
from proxy.interceptors.api_versions import ApiVersionsInterceptor, decode_api_versions
from proxy.interceptors.supported_versions import SupportedVersions
from proxy.local import cluster
from tests.integration.quotas import Peer

GOLDEN = Path(__file__).parents[1] / "golden"
FILE = GOLDEN / "api-versions.json"
BODIES = GOLDEN / "api-versions-bodies.json"
VERSIONS = ("3.9.2", "4.3.1", "4.4.0")
API_VERSIONS_VERSIONS = range(3, 6)

PRIVATE = {30000: (0, 0)}
VIEW = FeaturesView(SUPPORTED, {"brokerside.audit.event.schema": LevelRange(1, 2)}, 7)
"""What the sidecar of the recordings supports besides, and what its fleet has finalized."""

Ranges = Mapping[int, tuple[int, int]]


def ask(address: str) -> Ranges:
    with Peer(address) as peer:
        return decode_api_versions(ask_body(peer, 0))


def ask_body(peer: Peer, version: int) -> bytes:
    values = {"ClientSoftwareName": "recorder", "ClientSoftwareVersion": "1", "NodeId": -1}
    return peer.ask(API_VERSIONS, version, encode(layout(API_VERSIONS, version, response=False), values))


def rewrite(version: int, body: bytes) -> bytes:
    features = FeaturesDirectory()
    features.view = VIEW
    return ApiVersionsInterceptor(SupportedVersions(PRIVATE), features, lambda ranges: None).rewrite(
        API_VERSIONS, version, body
    )


def recorded() -> dict[str, Ranges]:
    return {
        version: {int(key): (low, high) for key, (low, high) in found.items()}
        for version, found in json.loads(FILE.read_text()).items()
    }


def recorded_bodies() -> dict[tuple[str, int], tuple[bytes, bytes]]:
    """Return the bodies of a broker and of a sidecar, by version of Kafka and of the request."""
    return {
        (kafka, int(version)): (bytes.fromhex(broker), bytes.fromhex(sidecar))
        for kafka, bodies in json.loads(BODIES.read_text()).items()
        for version, (broker, sidecar) in bodies.items()
    }


def _record() -> None:
    found: dict[str, Ranges] = {}
    bodies: dict[str, dict[int, list[str]]] = {}
    for kafka in VERSIONS:
        with tempfile.TemporaryDirectory() as folder:
            state = cluster.up(Path(folder), kafka_version=kafka, advertise="broker")
            try:
                found[kafka] = ask(state.nodes[0].upstream)
                with Peer(state.nodes[0].upstream) as peer:
                    sent = {version: ask_body(peer, version) for version in API_VERSIONS_VERSIONS}
            finally:
                cluster.down(Path(folder))
        bodies[kafka] = {version: [body.hex(), rewrite(version, body).hex()] for version, body in sent.items()}
    lines = (f'  "{version}": {json.dumps(ranges)}' for version, ranges in found.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    BODIES.write_text(json.dumps(bodies, indent=1) + "\n")


if __name__ == "__main__":
    _record()
