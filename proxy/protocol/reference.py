"""Generates docs/protocol.md and docs/protocol-versions.md from the table."""

from __future__ import annotations

from collections.abc import Iterable

from proxy.protocol.versions import TABLE, Addition, release_ends, release_range

_INTRODUCTION = """\
# ProtocolVersion

Generated from `proxy/protocol/protocol_versions.json` by `make docs`.

A ProtocolVersion is one number for the whole of Kafka's protocol: it grows by one with each addition to it, be that a
new api or a new version of one. So a broker can say in two numbers, the oldest and the newest that it has in full, what
otherwise takes a range for each api. A sidecar returns those of every broker of its cluster in BrokerMetadata.

**Kafka itself never had it.** It was proposed in the first draft of KIP-35 for 0.9.0.0; what was adopted in 0.10.0 is
ApiVersions, a range of versions for each api. The numbers here are this project's own, counted in the order in which
Kafka's releases brought the additions, and within one release in the order of api key and version. No broker and no
other client knows them.

## How a client uses it

1. Connect to a broker's sidecar and send BrokerMetadata with the node id -1, or with none for all brokers.
2. Take `ProtocolVersionMin` and `ProtocolVersionMax` of the broker to talk to. They are of that broker alone: during an
   upgrade they differ from one to the next. -1 and -1: not known, ask that broker for its ApiVersions.
3. An api's version can be used if it was added at or before `ProtocolVersionMax` and not removed at or before it. In
   Python `proxy.protocol.versions.versions_for(range)` returns the first and the last version by api key. To find what
   several brokers have in common, do that for each of them.

| | BrokerMetadata | ApiVersions |
|---|---|---|
| who answers | a sidecar | every broker since 0.10.0, and the sidecar passes it on |
| about | every broker of the cluster, or some, in one answer | the broker that is asked |
| says | two numbers, and what else is known of a broker | a range for each api |
| holes, other vendors' apis | not included | included |
| needs | this table | nothing |

Use ApiVersions wherever one connection is concerned; BrokerMetadata is for choosing and checking brokers.

## What the numbers rest on

* **Sources.** `python -m tests.tools.generate_protocol` reads the last patch of each minor release from its
  `kafka-clients` jar: since 2.8 the message definitions in it, before that its class `ApiKeys`, because the definitions
  say only since 2.8 who serves a message, and there are none before 2.2. All of 0.8.2 is listed as added in 0.8.2,
  also what is older. Early jars name what the clients of that release knew, which for 0.8.2 and 0.9.0 need not be all
  that their brokers had.
* **For clients only.** An api counts if in any release a listener for clients has it (`"listeners": ["broker"]`). What
  controllers alone have, and what only brokers in ZooKeeper mode sent each other, has no number.
* **Unstable versions** (`latestVersionUnstable`) are counted by the first release that has them without that mark.
  InitProducerId v6 still has it in 4.4.
* **Deprecated** is a version that its release calls so (`deprecatedVersions`, since 3.7), if that was not withdrawn.
* **Optional** are GetTelemetrySubscriptions and PushTelemetry: a broker has them only with a telemetry reporter. They
  are numbered, but neither a range nor `versions_for` says anything about them.
* **Private** apis are those that sidecars answer. They are numbered like all others, because an addition to the
  protocol is one whoever makes it; a broker without a sidecar does not lack them.

A broker's range follows from its ApiVersions. `max` is the newest ProtocolVersion at which the broker has everything
that was added and not yet removed; `min` is the oldest from which on that holds without a break. What was removed in
4.0 (KIP-896) is why the ranges of 4.x begin late. Since 4.0 brokers claim Produce v0 to v2 for the sake of old clients,
and close the connection when such a request comes: they are taken not to have them.

A broker with a hole has the range before the hole, with `protocol.version.exact=false`: it may have more than the range
says, never less. That is so for other vendors' brokers, for brokers in ZooKeeper mode from 2.8 on (they lack
DescribeQuorum), and for KRaft before 3.6 (delegation tokens were missing). Where there is no such range, both are -1.

A broker does not report its release. Where `broker.version` is not configured, it is inferred from the range: the
release whose apis are the most like the broker's. 3.4 added nothing, and so it is reported as 3.3.

Rows are never changed or taken out; only when a version came to be deprecated or was removed is added to them.
`make check` fails otherwise, by the checksums in `deploy/locks/protocol.txt`.

"""


_ADDITIONS = """\
# Every ProtocolVersion

Generated from `proxy/protocol/protocol_versions.json` by `make docs`. [protocol.md](protocol.md) says what a
ProtocolVersion is.

"""


def pages() -> dict[str, str]:
    """Return the text of both pages by their paths below docs/."""
    return {
        "protocol.md": (_INTRODUCTION + _releases()).rstrip("\n") + "\n",
        "protocol-versions.md": _ADDITIONS + "\n".join(map(_api, _by_key(TABLE))),
    }


def _releases() -> str:
    rows = "".join(
        f"| {release} | {known.min} | {known.max} |\n"
        for release, known in ((release, release_range(release)) for release in release_ends())
    )
    every = "[protocol-versions.md](protocol-versions.md) lists every addition."
    head = "| release | ProtocolVersionMin | ProtocolVersionMax |\n|---|---|---|\n"
    return f"## Releases of Kafka\n\n{every}\n\n{head}{rows}\n"


def _by_key(table: Iterable[Addition]) -> list[list[Addition]]:
    found: dict[int, list[Addition]] = {}
    for row in table:
        found.setdefault(row.api_key, []).append(row)
    return [found[key] for key in sorted(found)]


def _api(rows: list[Addition]) -> str:
    marks = "".join(f", {mark}" for mark in ("optional", "private") if getattr(rows[0], mark))
    return f"## {rows[-1].api} ({rows[-1].api_key}{marks})\n\n" + "".join(map(_row, rows))


def _row(row: Addition) -> str:
    lines = [f"Added in ProtocolVersion: {row.n} ({row.release})"]
    if row.deprecated is not None:
        lines.append(f"Deprecated in ProtocolVersion: {row.deprecated}")
    if row.removed is not None:
        lines.append(f"Removed in ProtocolVersion: {row.removed}")
    return f"* {row.api}Request v{row.version}\n" + "".join(f"  * {line}\n" for line in lines)
