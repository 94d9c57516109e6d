"""The builtin tags of a broker: what each is called, means and looks like. The one place that says so.

A tag is a text with a name. Values come from what the broker supports, from the configuration, and from the cluster;
here is what they may look like, and those that follow from what the broker supports.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from proxy.protocol import versions

RESERVED = ("brokerside.", "sidecar.")
"""What names of later builtin tags begin with, beside those below."""


class Tag(NamedTuple):
    """One builtin tag. ``grammar``: a regular expression that each of its values matches as a whole."""

    name: str
    meaning: str
    grammar: str
    example: str
    parsing: str


_BIT = r"[0-9]+=[a-z0-9]+"
_ENDPOINT = r"(?:plaintext|ssl|sasl_plaintext|sasl_ssl)://(?:[^\s,:/\[\]]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"

BUILTIN: tuple[Tag, ...] = (
    Tag("broker.id", "The broker's node id.", r"[0-9]{1,10}", "3", "A decimal number; the same as `NodeId`."),
    Tag(
        "broker.version",
        "The broker's version for people: `broker.version` of the configuration, else what was inferred from the "
        "versions it supports. Left out while neither is known.",
        r"\S.*",
        "4.3.x (inferred)",
        "Do not: compare `broker.version.int`.",
    ),
    Tag(
        "broker.version.source",
        "Where `broker.version` comes from.",
        r"config|inferred",
        "inferred",
        "`config`: an operator wrote it. `inferred`: the release with the same api versions.",
    ),
    Tag(
        "broker.version.int",
        "The broker's version as a number: one byte for each of four components. Of an inferred release only those "
        "components that are known, then zeros.",
        r"0x[0-9a-f]{8}",
        "0x04030100",
        "A hexadecimal number; the order of numbers is the order of versions. 0.9.0.0 is `0x00090000`.",
    ),
    Tag(
        "compression.codecs",
        "Codecs of record batches that the broker takes.",
        rf"{_BIT}(?:,{_BIT})*",
        "1=gzip,2=snappy,3=lz4,4=zstd",
        "Split at `,`, then at `=`: the value of the batch attributes' codec bits, and its name.",
    ),
    Tag(
        "message.max.bytes",
        "The broker's `message.max.bytes` as it is in force: the largest record batch, in bytes. Read every 10 s, and "
        "when a change of it passes this sidecar. Left out while the cluster has not told it.",
        r"[0-9]{1,10}",
        "1048588",
        "A decimal number. Fit for librdkafka's `message.max.bytes` and Java's `max.request.size`.",
    ),
    Tag(
        "message.formats",
        "Formats of messages (magic numbers) that the broker takes in Produce requests.",
        r"v[0-9](?:,v[0-9])*",
        "v2",
        "Split at `,`; the number after `v` is the magic byte.",
    ),
    Tag(
        "endpoints",
        "Where clients reach the broker: the listeners of its sidecar, as they are advertised.",
        rf"{_ENDPOINT}(?:,{_ENDPOINT})*",
        "plaintext://kafka-1.example:9092,ssl://kafka-1.example:9093",
        "Split at `,`; then the security protocol in lower case, `://`, the host (IPv6 in brackets), `:` and the port.",
    ),
    Tag(
        "cluster.id",
        "The id of the Kafka cluster. Left out while the cluster has not told it.",
        r"[A-Za-z0-9_-]{1,64}",
        "MkU3OEVBNTcwNTJENDM2Qg",
        "An opaque text.",
    ),
    Tag(
        "protocol.version.source",
        "Where `ProtocolVersionMin` and `ProtocolVersionMax` come from.",
        r"sidecar|broker|unknown",
        "sidecar",
        "`sidecar`: the broker's own sidecar computed them. `broker`: it has none, and was asked itself. `unknown`: "
        "nobody could be asked; both are -1.",
    ),
    Tag(
        "protocol.version.exact",
        "Whether the range says all that the broker supports. Left out where the range is not known.",
        r"true|false",
        "true",
        "`false`: the broker supports more than its range, but with gaps.",
    ),
    Tag(
        "sidecar",
        "Only of brokers without a running sidecar.",
        r"absent",
        "absent",
        "Where it is there, the other tags are those that the sidecar told last, or none.",
    ),
    Tag(
        "sidecar.version",
        "Version of the broker's sidecar.",
        r"[0-9]\S*",
        "0.1.0",
        "For people.",
    ),
)

NAMES = {tag.name: tag for tag in BUILTIN}


def reserved(name: str) -> bool:
    """Return whether a tag of this name cannot be an operator's."""
    return name in NAMES or name.startswith(RESERVED)


def invalid(tags: Mapping[str, str]) -> list[str]:
    """Return the names of builtin tags in ``tags`` whose value is not as documented."""
    return [name for name, value in tags.items() if name in NAMES and not re.fullmatch(NAMES[name].grammar, value)]


class Said(NamedTuple):
    """What follows from a broker's ApiVersions. ``release``: as ``4.3.x``, None where it is like none of Kafka's."""

    range: versions.ProtocolRange
    release: str | None
    tags: Mapping[str, str]


def said_by(supported: versions.Supported) -> Said:
    """Work it out, once for brokers that say the same: it takes milliseconds."""
    return _said_by(tuple(sorted(supported.items())))


@lru_cache(maxsize=8)
def _said_by(said: tuple[tuple[int, tuple[int, int]], ...]) -> Said:
    supported = dict(said)
    known = versions.ranges(supported)
    found = {"compression.codecs": versions.codecs(supported), "message.formats": versions.message_formats(supported)}
    if known.max >= 0:
        found["protocol.version.exact"] = str(known.exact).lower()
    tags = {name: value for name, value in found.items() if value}
    return Said(known, versions.release_of(supported), tags)


def of_version(configured: str | None, release: str | None) -> dict[str, str]:
    """Return the tags of the broker's version: as an operator wrote it, else as it was inferred."""
    version = configured or release
    if version is None:
        return {}
    return {
        "broker.version": configured or f"{release} (inferred)",
        "broker.version.source": "config" if configured else "inferred",
        "broker.version.int": f"0x{versions.version_int(version):08x}",
    }


def reference_markdown() -> str:
    """Return docs/tags.md."""
    parts = [
        f"## `{tag.name}`\n\n{tag.meaning}\n\n* Example: `{tag.example}`\n* Format: `^{tag.grammar}$`\n"
        f"* How to parse: {tag.parsing}\n"
        for tag in BUILTIN
    ]
    return "\n".join([_INTRODUCTION, *parts])


_INTRODUCTION = f"""\
# Tags of a broker

Generated from `proxy/replies/tags.py` by `make docs`.

`BrokerMetadata` ([broker-metadata.md](broker-metadata.md)) tells tags of each broker: names with a text each. Those
below are built in. Formats are regular expressions that a value matches as a whole. Readers pass over names that they
do not know: there may be more at any time.

## Tags of your own

`tag.NAME: VALUE` in the sidecar's configuration, or `tags: {{NAME: VALUE}}`, adds one. Values are the text that is
written: `tag.version: 1.10` is `1.10`. Changes act without a restart, and reach the other sidecars with the next
heartbeat. A name of a built-in tag is a mistake, and so is one that begins with
{" or ".join(f"`{prefix}`" for prefix in RESERVED)}.

```yaml
tag.aws.zone: eu-central-1
tag.rack: r8a9
tag.cluster: kafka3
```
"""
