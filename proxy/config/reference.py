"""Writes docs/config.md from the model."""

from __future__ import annotations

import json
from typing import Any

from proxy.config.environment import NOT_KEYS, variable
from proxy.config.keys import ITEM, KEYS, OPEN, Key, reloadable, single
from proxy.config.values import Endpoint
from proxy.limits.model import DEFAULT_ADDRESS

EXAMPLE = """\
broker.id: 1
broker.version: 4.3.1
tags: {aws.zone: eu-central-1, cluster: kafka3}
tag.rack: r8a9

private.api.key.base: 30000
broker.metadata.before.authentication: false
unsupported.request.response: empty
internal.topics.protected: true
unsupported.request.max.consecutive: 1000
metadata.watch.ms: 1000

# The sidecar's own Kafka traffic: audit events, look-ups. Never through a port of a sidecar.
internal.bootstrap.servers: 127.0.0.1:19094
internal:
  security.protocol: SASL_PLAINTEXT
  sasl.mechanism: SCRAM-SHA-512
  sasl.username: brokerside
  sasl.password: {file: secrets/internal-password}   # relative to this file

listeners:
  - name: CLIENT
    bind: 0.0.0.0:9092
    advertised: kafka-1.example:9092
    upstream: 127.0.0.1:19092
    security.protocol: SASL_PLAINTEXT
    sasl.oauthbearer.sub.claim.name: sub
    inter.broker: false
    proxy.protocol: required
    proxy.protocol.trusted: [10.1.0.0/24]
    upstream.source: 127.0.0.1
    unsupported.request.response: close
    rewrite.addresses: true
    rewrite.addresses.map: {"2": "kafka-2.example:9092"}
  - name: TLS
    bind: "[::]:9093"
    advertised: kafka-1.example:9093
    upstream: 127.0.0.1:19093
    security.protocol: SASL_SSL

observer.class.names: [observers.audit:AuditObserver]
observer.max.body.bytes: 1048576
observer.records.deep: false
audit:
  topic: brokerside-audit
  exclude.topics: [__consumer_offsets]
  exclude.principals: [User:monitoring]
  producer: {compression.type: zstd, compression.level: 1}
  mode: event
  rollup.interval.ms: 1000
  inventory.interval.ms: 60000
  spool.path: /var/lib/brokerside/spool
  spool.max.bytes: 1073741824
  hmac.keys.file: secrets/audit-keys

registry:
  hmac.keys.file: secrets/registry-keys

admin:
  bind: 127.0.0.1:9644
  hosts: [kafka-1.example]

quotas:
  quota.window.num: 11
  quota.window.size.seconds: 1
  max.connection.creation.rate: 200
  max.connection.creation.rate.action: enforce
  max.connections: 5000
  max.connections.action: enforce
  max.connections.per.ip: 500
  max.connections.per.ip.overrides: "10.0.0.7:50"
  max.connections.per.ip.action: observe
  listener.name.client.max.connection.creation.rate: 100
  listener.name.client.max.connection.creation.rate.action: enforce
  listener.name.client.max.connections: 4000
  listener.name.client.max.connections.action: observe
  ips:
    "<default>": {connection_creation_rate: 20, action: enforce}
    "10.0.0.7": {connection_creation_rate: 5, action: observe}
  connection_creation_rate.action: enforce
  ip.throttle.recheck: true
  ip.throttle.max.delayed: 1000
  ip.v6.prefix.length: 64
  ip.store: broker
  source: file
  protect.upstream: true

workers: 1
socket.request.max.bytes: 104857600
socket.listen.backlog.size: 4096
connection.setup.timeout.ms: 10000
upstream.connect.timeout.ms: 5000
drain.timeout.ms: 10000
observer.shutdown.timeout.ms: 2000
log.level: info
"""
"""Every key that exists, in use."""

_INTRODUCTION = """\
# Configuration

Generated from `proxy/config/model.py` by `make docs`.

One YAML file: `brokerside run -c FILE`. `brokerside check-config FILE` checks it without starting anything, and names
every mistake at once: key, value, what is allowed, line. Keys have dots in their names and are written as they stand
here; unknown keys are mistakes, so that a slip of the pen never goes unnoticed.
"""

_KEYS = """\
## Keys

`[]` stands for each item of a list, `<…>` for a name of yours.

The column *change needs*: keys with `reload` act in the running sidecar. It reads the file again when that has changed,
and after SIGHUP, `brokerside reload` or `POST /reload`; no connection is closed for it. A file with a mistake, or with
another value for a key with `restart`, changes nothing at all: the sidecar goes on with what it has, and logs why.
"""

_ENVIRONMENT = """\
## Environment variables

A variable overrides the file: `BROKERSIDE_` and the key in capitals, with `_` for `.` and `__` to step into a section.
Keys of type text or host:port and settings of librdkafka take the value as it is; all others read it as YAML. A list is
replaced as a whole, so there are no variables for the keys of one listener, nor for the quotas of one.
"""

_SECRETS = """\
## Secrets

A secret never stands in the configuration. Any setting below `internal` may be `{file: PATH}`, the text of another
file without its line end; a path that is not absolute is relative to the configuration's folder. Settings that hold a
secret (`sasl.password`, `ssl.key.password`, `ssl.key.pem`, `sasl.oauthbearer.client.secret`, …) must be, or come from
their variable, here `BROKERSIDE_INTERNAL__SASL_PASSWORD`. They are shown as `***` wherever the configuration is.

Other contents of such a file, or of one that a setting names (`ssl.ca.location`, …), need a restart.
"""


def reference_markdown() -> str:
    """Return the whole page."""
    rows = "".join(_row(key) for key in _documented())
    head = "| key | type | default | unit | change needs | meaning |\n|---|---|---|---|---|---|\n"
    return (
        f"{_INTRODUCTION}\n{_KEYS}\n{head}{rows}"
        f"\n{_ENVIRONMENT}\n{_variables()}\n{_SECRETS}\n## Complete example\n\n```yaml\n{EXAMPLE}```\n"
    )


def _documented() -> list[Key]:
    """Return every key but the sections that only group others."""
    return [key for key in KEYS.values() if key.meaning]


def _row(key: Key) -> str:
    name = ".".join(key.path).replace(f".{ITEM}", ITEM)
    allowed = (
        "" if key.kind == "host:port" else f" Allowed: {key.allowed.replace(DEFAULT_ADDRESS, f'`{DEFAULT_ADDRESS}`')}."
    )
    change = "reload" if reloadable(key.path) else "restart"
    return f"| `{name}` | {key.kind} | {_default(key)} | {key.unit} | {change} | {key.meaning}{allowed} |\n"


def _default(key: Key) -> str:
    if key.required:
        return "required"
    if key.path == ("listeners", ITEM, "advertised"):
        return "`bind`"
    if key.path == ("quotas", "ip.store"):
        return "`broker` where the cluster can be asked, else `file`"
    if key.path == ("listeners", ITEM, "unsupported.request.response"):
        return "that of all"
    return "none" if key.default is None else f"`{_literal(key.default)}`"


def _literal(value: Any) -> str:
    if callable(value):
        value = value()
    return str(value) if isinstance(value, Endpoint) or (isinstance(value, str) and value) else json.dumps(value)


def _variables() -> str:
    names = [variable(key.path) for key in _documented() if single(key.path)]
    names += [f"{variable(mapping)}__…" for mapping in OPEN]
    lines = "".join(f"* `{name}`\n" for name in names)
    others = ", ".join(f"`{name}`" for name in sorted(NOT_KEYS))
    return (
        f"{lines}\nAny other variable that begins with `BROKERSIDE_` is a mistake, but for those\n"
        f"of other commands ({others}) and\n"
        "those that Kubernetes sets in pods for services named `brokerside…`.\n"
    )
