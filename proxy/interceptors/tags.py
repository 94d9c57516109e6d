"""The built-in tags of a broker: name, meaning and format of each.

A tag is a named text. Its value comes from what the broker supports, from the configuration or from the cluster. This
module defines the formats, and computes the tags that follow from what the broker supports.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from proxy.protocol import versions

RESERVED_PREFIXES = ("brokerside.", "sidecar.")
"""Prefixes of names that are kept for future built-in tags."""


class BuiltinTag(NamedTuple):
    """One built-in tag. ``grammar``: a regular expression that matches each of its values completely."""

    name: str
    meaning: str
    grammar: str
    example: str
    parsing: str


_BIT = r"[0-9]+=[a-z0-9]+"
_FEATURE = r"[a-z.]+=[0-9]+-[0-9]+"
_ENDPOINT = r"(?:plaintext|ssl|sasl_plaintext|sasl_ssl)://(?:[^\s,:/\[\]]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"

BUILTIN_TAGS: tuple[BuiltinTag, ...] = (
    BuiltinTag("broker.id", "The broker's node id.", r"[0-9]{1,10}", "3", "A decimal number; the same as `NodeId`."),
    BuiltinTag(
        "broker.version",
        "The broker's version for people: `broker.version` of the configuration, else what was inferred from the "
        "versions it supports. Left out while neither is known.",
        r"\S.*",
        "4.3.x (inferred)",
        "Do not: compare `broker.version.int`.",
    ),
    BuiltinTag(
        "broker.version.source",
        "Where `broker.version` comes from.",
        r"(?:config|inferred)",
        "inferred",
        "`config`: an operator wrote it. `inferred`: the release with the same api versions.",
    ),
    BuiltinTag(
        "broker.version.int",
        "The broker's version as a number: one byte for each of four components. Of an inferred release only those "
        "components that are known, then zeros.",
        r"0x[0-9a-f]{8}",
        "0x04030100",
        "A hexadecimal number; the order of numbers is the order of versions. 0.9.0.0 is `0x00090000`.",
    ),
    BuiltinTag(
        "compression.codecs",
        "Codecs of record batches that the broker takes.",
        rf"{_BIT}(?:,{_BIT})*",
        "1=gzip,2=snappy,3=lz4,4=zstd",
        "Split at `,`, then at `=`: the value of the batch attributes' codec bits, and its name.",
    ),
    BuiltinTag(
        "message.max.bytes",
        "The broker's `message.max.bytes` as it is in force: the largest record batch, in bytes. Read every 10 s, and "
        "when a change of it passes this sidecar. Left out while it is unknown.",
        r"[0-9]{1,10}",
        "1048588",
        "A decimal number. Fit for librdkafka's `message.max.bytes` and Java's `max.request.size`.",
    ),
    BuiltinTag(
        "message.formats",
        "Formats of messages (magic numbers) that the broker takes in Produce requests.",
        r"v[0-9](?:,v[0-9])*",
        "v2",
        "Split at `,`; the number after `v` is the magic byte.",
    ),
    BuiltinTag(
        "endpoints",
        "Where clients reach the broker: the listeners of its sidecar, as they are advertised.",
        rf"{_ENDPOINT}(?:,{_ENDPOINT})*",
        "plaintext://kafka-1.example:9092,ssl://kafka-1.example:9093",
        "Split at `,`; then the security protocol in lower case, `://`, the host (IPv6 in brackets), `:` and the port.",
    ),
    BuiltinTag(
        "cluster.id",
        "The id of the Kafka cluster. Left out while it is unknown.",
        r"[A-Za-z0-9_-]{1,64}",
        "MkU3OEVBNTcwNTJENDM2Qg",
        "An opaque text.",
    ),
    BuiltinTag(
        "protocol.version.source",
        "Where `ProtocolVersionMin` and `ProtocolVersionMax` come from.",
        r"(?:sidecar|broker|unknown)",
        "sidecar",
        "`sidecar`: the broker's own sidecar computed them. `broker`: it has none, and was asked itself. `unknown`: "
        "neither could be asked, and both are -1.",
    ),
    BuiltinTag(
        "protocol.version.exact",
        "Whether the range describes all that the broker supports. Left out if the range is unknown.",
        r"(?:true|false)",
        "true",
        "`false`: the broker supports more than its range, but with gaps.",
    ),
    BuiltinTag(
        "sidecar",
        "Only of brokers without a running sidecar.",
        r"absent",
        "absent",
        "If it is present, the other tags are the last ones that the sidecar published, or none.",
    ),
    BuiltinTag(
        "sidecar.version",
        "Version of the broker's sidecar.",
        r"[0-9]\S*",
        "0.1.0",
        "For people.",
    ),
    BuiltinTag(
        "sidecar.features",
        "Features of the fleet that the broker's sidecar supports. Left out where feature levels are disabled.",
        rf"{_FEATURE}(?:,{_FEATURE})*",
        "brokerside.audit.event.schema=1-2,brokerside.quota.ip=1-1",
        "Split at `,`; then the feature, `=`, the lowest level, `-` and the highest.",
    ),
    BuiltinTag(
        "brokerside.features.epoch",
        "The last epoch of finalized levels that the broker's sidecar follows, in all of its processes. Left out before"
        " the first one.",
        r"[0-9]{1,19}",
        "7",
        "A decimal number. Sidecars with the same number follow the same levels.",
    ),
)

TAGS_BY_NAME = {tag.name: tag for tag in BUILTIN_TAGS}


def is_reserved(name: str) -> bool:
    """Return whether an operator's tag must not have this name."""
    return name in TAGS_BY_NAME or name.startswith(RESERVED_PREFIXES)


def invalid_tag_names(tags: Mapping[str, str]) -> list[str]:
    """Return the names of built-in tags in ``tags`` whose value does not match its format."""
    return [
        name
        for name, value in tags.items()
        if name in TAGS_BY_NAME and not re.fullmatch(TAGS_BY_NAME[name].grammar, value)
    ]


class BrokerCapabilities(NamedTuple):
    """What follows from a broker's ApiVersions response. ``release``: as ``4.3.x``; None if it matches no Kafka
    release."""

    range: versions.ProtocolRange
    release: str | None
    tags: Mapping[str, str]


def derive_capabilities(supported: versions.Supported) -> BrokerCapabilities:
    """Return the capabilities of a broker with these versions. It takes milliseconds, so results are cached."""
    return _derive_capabilities(tuple(sorted(supported.items())))


@lru_cache(maxsize=8)
def _derive_capabilities(said: tuple[tuple[int, tuple[int, int]], ...]) -> BrokerCapabilities:
    supported = dict(said)
    known = versions.ranges(supported)
    found = {"compression.codecs": versions.codecs(supported), "message.formats": versions.message_formats(supported)}
    if known.max >= 0:
        found["protocol.version.exact"] = str(known.exact).lower()
    tags = {name: value for name, value in found.items() if value}
    return BrokerCapabilities(known, versions.release_of(supported), tags)


def version_tags(configured: str | None, release: str | None) -> dict[str, str]:
    """Return the tags about the broker's version: as configured, otherwise as inferred."""
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
        for tag in BUILTIN_TAGS
    ]
    return "\n".join([_INTRODUCTION, *parts])


_INTRODUCTION = f"""\
# Tags of a broker

Generated from `proxy/interceptors/tags.py` by `make docs`.

`BrokerMetadata` ([broker-metadata.md](broker-metadata.md)) returns the tags of each broker: names with a text each. The
tags below are built in. Formats are regular expressions that match a value completely. Readers have to ignore unknown
names, since there may be more at any time.

## Tags of your own

`tag.NAME: VALUE` in the sidecar's configuration, or `tags: {{NAME: VALUE}}`, adds one. Values are the text that is
written: `tag.version: 1.10` is `1.10`. A line `tag.NAME = VALUE`, as in a broker's `server.properties`, is taken as it
is: its value is everything behind the `=`, without blanks around it. Changes act without a restart, and reach the other
sidecars with the next heartbeat. A name of a built-in tag is a mistake, and so is one that begins with
{" or ".join(f"`{prefix}`" for prefix in RESERVED_PREFIXES)}.

```yaml
tag.aws.zone: eu-central-1
tag.rack: r8a9
tag.cluster: kafka3
```
"""
