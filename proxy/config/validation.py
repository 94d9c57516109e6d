"""Checks across keys. They work on values that may be wrong, and skip those that cannot be read."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from proxy.config.document import ConfigDocument, Problem
from proxy.config.internal import first_unsupported
from proxy.config.keys import KEYS, LISTENER_QUOTAS, Path, below, printable
from proxy.config.quotas import split_listener_key
from proxy.config.values import INT32_MAX, Endpoint, address
from proxy.interceptors.tags import is_reserved
from proxy.limits.model import UNLIMITED

WILDCARDS = {"0.0.0.0", "::"}  # noqa: S104 - compared with, not listened on
LOOPBACK = {"127.0.0.1", "::1", "localhost"}
WITH_TLS = ("SSL", "SASL_SSL")
TRUSTSTORE = "ssl.truststore.location"
ONLY_INTERNAL = ("security.", "sasl.", "ssl.", "enable.sasl.", "enable.ssl.")


def validate_across_keys(document: ConfigDocument, wrong: Collection[Path]) -> Iterator[Problem]:
    """Yield the problems between keys. ``wrong``: paths that already have a problem of their own."""
    listeners = document.get(("listeners",))
    count = len(listeners) if isinstance(listeners, list) else 0
    yield from _repeated_names(document, count)
    yield from _repeated_addresses(document, count)
    yield from _advertised(document, count)
    yield from _loops(document, count)
    yield from _rewriting(document, count)
    yield from _tls(document, count)
    yield from _tags(document)
    yield from _observers(document)
    yield from _client_settings(document)
    yield from _inter_broker(document, count)
    yield from _proxy_protocol(document, count)
    yield from _listener_quotas(document, count)
    yield from _addresses(document)
    yield from _quota_sources(document, wrong)
    yield from _principals(document, count)
    yield from _coordinator(document)


def _repeated_names(document: ConfigDocument, count: int) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for number in range(count):
        path = ("listeners", number, "name")
        name = document.get(path)
        if isinstance(name, str):
            if name.lower() in first:
                text = f"{printable(repr(name))} is also the name of {first[name.lower()]} (allowed: a name of its own)"
                yield Problem(path, text)
            first.setdefault(name.lower(), f"listeners[{number}]")


def _repeated_addresses(document: ConfigDocument, count: int) -> Iterator[Problem]:
    used: list[tuple[str, Endpoint]] = []
    places: list[tuple[str, Path]] = [(f"listeners[{n}]", ("listeners", n, "bind")) for n in range(count)]
    for owner, path in [*places, ("admin", ("admin", "bind"))]:
        bind = _endpoint(document, path)
        if bind is None:
            continue
        for other, taken in used:
            if _collide(bind, taken):
                yield Problem(path, f"{bind} is taken by {other}.bind {taken} (allowed: an address of its own)")
                break
        used.append((owner, bind))


def _advertised(document: ConfigDocument, count: int) -> Iterator[Problem]:
    """Yield addresses for clients that none can dial."""
    for number in range(count):
        path: Path = ("listeners", number, "advertised")
        given, bind = _endpoint(document, path), _endpoint(document, (*path[:2], "bind"))
        allowed = "(allowed: host:port as clients dial it)"
        if given is not None and given.host in WILDCARDS:
            yield Problem(path, f"{given} is no address that a client can dial {allowed}")
        if document.get(path) is None and bind is not None and bind.host in WILDCARDS:
            yield Problem(path, f"is missing, and bind is {bind}, which no client can dial {allowed}")


def _loops(document: ConfigDocument, count: int) -> Iterator[Problem]:
    """Yield upstreams that are an address which the sidecar itself listens on or advertises."""
    own: list[tuple[str, Endpoint]] = []
    for number in range(count):
        for key in ("bind", "advertised"):
            address = _endpoint(document, ("listeners", number, key))
            if address is not None:
                own.append((f"listeners[{number}].{key}", address))
    for number in range(count):
        path = ("listeners", number, "upstream")
        upstream = _endpoint(document, path)
        mine = next((name for name, address in own if upstream and _reaches(upstream, address)), None)
        if mine is not None:
            yield Problem(path, f"{upstream} leads back to {mine} (allowed: the broker's private port)")
    servers = document.get(("internal.bootstrap.servers",))
    for server in servers.split(",") if isinstance(servers, str) else ():
        target = _parsed(server.strip())
        mine = next((name for name, address in own if target and _reaches(target, address)), None)
        if mine is not None:
            text = f"{target} leads back to {mine} (allowed: INTERNAL listeners of brokers)"
            yield Problem(("internal.bootstrap.servers",), text)


def _rewriting(document: ConfigDocument, count: int) -> Iterator[Problem]:
    for number in range(count):
        path: Path = ("listeners", number, "rewrite.addresses")
        wanted, given = document.get(path), document.get((*path[:2], "rewrite.addresses.map"))
        protocol = document.get((*path[:2], "security.protocol"))
        if wanted is True and _passes_as_bytes(document, path[:2]):
            text = f"true is not possible with security.protocol: {protocol} and no tls, which passes as bytes"
            yield Problem(path, text)
        if given and wanted in (None, False):
            text = "is given, and rewrite.addresses is not true (allowed: both, or neither)"
            yield Problem((*path[:2], "rewrite.addresses.map"), text)
        own = document.get(("broker.id",))
        if isinstance(given, dict) and isinstance(own, int) and 0 <= own <= INT32_MAX and str(own) in given:
            text = "is this sidecar's own broker (allowed: other brokers; its own address is advertised)"
            yield Problem((*path[:2], "rewrite.addresses.map", str(own)), text)


def _tls(document: ConfigDocument, count: int) -> Iterator[Problem]:
    for number in range(count):
        listener: Path = ("listeners", number)
        protocol = document.get((*listener, "security.protocol")) or "PLAINTEXT"
        tls, upstream = document.get((*listener, "tls")), document.get((*listener, "upstream.tls"))
        if tls is not None and protocol in ("PLAINTEXT", "SASL_PLAINTEXT"):
            text = f"is given, and security.protocol is {protocol} (allowed: with SSL or SASL_SSL)"
            yield Problem((*listener, "tls"), text)
        if upstream is not None and _passes_as_bytes(document, listener):
            text = f"is given, and {protocol} passes as bytes without tls (allowed: with tls, or neither)"
            yield Problem((*listener, "upstream.tls"), text)
        if isinstance(tls, dict) and _all_known(document, (*listener, "tls")):
            wanted, given = tls.get("ssl.client.auth", "none"), tls.get(TRUSTSTORE) is not None
            if wanted in ("requested", "required") and not given:
                text = f"is missing, and ssl.client.auth: {wanted} needs it (allowed: a file with the clients' CAs)"
                yield Problem((*listener, "tls", TRUSTSTORE), text)
            if wanted == "none" and given:
                text = "is given, and ssl.client.auth is none (allowed: with requested or required)"
                yield Problem((*listener, "tls", TRUSTSTORE), text)
        if isinstance(upstream, dict) and _all_known(document, (*listener, "upstream.tls")):
            pair = ("ssl.certificate.location", "ssl.key.location")
            missing = [name for name in pair if upstream.get(name) is None]
            if len(missing) == 1:
                text = f"is missing, and {pair[pair.index(missing[0]) - 1]} is given (allowed: both, or neither)"
                yield Problem((*listener, "upstream.tls", missing[0]), text)


def _tags(document: ConfigDocument) -> Iterator[Problem]:
    tags = document.get(("tags",))
    for name in tags if isinstance(tags, dict) else ():
        if is_reserved(name):
            text = (
                "is the name of a built-in tag, or reserved for one (allowed: a name that docs/tags.md does not have)"
            )
            yield Problem(("tags", name), text, final=True)


def _observers(document: ConfigDocument) -> Iterator[Problem]:
    path = ("observer.class.names",)
    names = document.get(path)
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",") if name.strip()]
    if not isinstance(names, list):
        names = []
    settings = document.get(("observers",))
    for name in settings if isinstance(settings, dict) else ():
        if name not in names:
            text = f"is no class of observer.class.names (allowed: {', '.join(map(str, names)) or 'none'})"
            yield Problem(("observers", name), text, final=True)
    if not names:
        return
    for number, name in enumerate(names):
        if isinstance(name, str) and name in names[:number]:
            yield Problem((*path, number), f"{printable(repr(name))} is named twice (allowed: once)")
    if document.get(("internal.bootstrap.servers",)) is None:
        text = "is missing, and observers need it (allowed: the brokers' INTERNAL listeners as host:port)"
        yield Problem(("internal.bootstrap.servers",), text)


def _client_settings(document: ConfigDocument) -> Iterator[Problem]:
    internal = document.get(("internal",))
    for name in ("bootstrap.servers", "metadata.broker.list"):
        if isinstance(internal, dict) and name in internal:
            yield Problem(
                ("internal", name), "cannot be set here (allowed: internal.bootstrap.servers beside internal)"
            )
    producer = document.get(("audit", "producer"))
    for name in producer if isinstance(producer, dict) else ():
        if name.startswith(ONLY_INTERNAL):
            text = f"cannot be set here (allowed: {name} under internal, for all of the sidecar's own traffic)"
            yield Problem(("audit", "producer", name), text, final=True)


def _inter_broker(document: ConfigDocument, count: int) -> Iterator[Problem]:
    paths = [("listeners", number, "inter.broker") for number in range(count)]
    for path in [path for path in paths if document.get(path) is True][1:]:
        yield Problem(path, "true is given to another listener already (allowed: one listener for it)")


def _proxy_protocol(document: ConfigDocument, count: int) -> Iterator[Problem]:
    for number in range(count):
        path = ("listeners", number, "proxy.protocol.trusted")
        if document.get(("listeners", number, "proxy.protocol")) == "required" and not document.get(path):
            text = "is missing, and proxy.protocol: required needs it (allowed: networks such as 10.0.0.0/8)"
            yield Problem(path, text)


def _listener_quotas(document: ConfigDocument, count: int) -> Iterator[Problem]:
    """Check that quotas ``listener.name.<listener>.…`` are of a known listener, always in one spelling."""
    quotas = document.get(("quotas",))
    names = [document.get(("listeners", number, "name")) for number in range(count)]
    known = {name.lower() for name in names if isinstance(name, str)}
    sure = bool(names) and len(known) == count  # else some listener is wrong itself, and may be the one that is meant
    spelled: dict[str, str] = {}
    for key in quotas if isinstance(quotas, dict) else ():
        found = split_listener_key(key)
        if found is None:
            if key.startswith(LISTENER_QUOTAS[-1]):
                text = "unknown key (allowed: listener.name.<listener>.max.connections and others of docs/config.md)"
                yield Problem(("quotas", key), text, final=True)
            continue
        name, _ = found
        first = spelled.setdefault(name.lower(), name)
        if sure and name.lower() not in known:
            allowed = printable(", ".join(sorted(known)))
            yield Problem(("quotas", key), f"{printable(repr(name))} is no listener (allowed: {allowed})", final=True)
        elif name != first:
            yield Problem(("quotas", key), f"names listener {first} in another spelling (allowed: one spelling)")


def _addresses(document: ConfigDocument) -> Iterator[Problem]:
    spelled: dict[str, str] = {}
    ips = document.get(("quotas", "ips"))
    for name in ips if isinstance(ips, dict) else ():
        try:
            first = spelled.setdefault(address(name), name)
        except ValueError:
            continue
        if first != name:
            yield Problem(("quotas", "ips", name), f"is the address {first} once more (allowed: one spelling)")


def _quota_sources(document: ConfigDocument, wrong: Collection[Path]) -> Iterator[Problem]:
    if document.get(("quotas", "max.connections.per.ip")) == 0 and not document.get(
        ("quotas", "max.connections.per.ip.overrides")
    ):
        text = "0 lets nobody in (allowed: 1 or more, or 0 with max.connections.per.ip.overrides)"
        yield Problem(("quotas", "max.connections.per.ip"), text)
    missing = document.get(("internal.bootstrap.servers",)) is None
    internal = document.get(("internal",))
    found = first_unsupported(internal) if isinstance(internal, dict) else None
    given = document.get(("internal", found.name)) if found is not None else None
    for name in ("ip.store", "source"):
        value = document.get(("quotas", name))
        if value not in ("broker", "min"):
            continue
        if missing:
            text = f"{value!r} needs internal.bootstrap.servers, which is missing (allowed: file)"
            yield Problem(("quotas", name), text, final=True)
        elif found is not None and ("internal", found.name) not in wrong and not isinstance(given, list | dict):
            yield Problem(("quotas", name), f"{value!r} is not possible (allowed: file), {found}", final=True)


def _principals(document: ConfigDocument, count: int) -> Iterator[Problem]:
    """Check that limits of principals let somebody in, and that there are principals to limit."""
    number = ("quotas", "max.connections.per.principal")
    overrides = ("quotas", "max.connections.per.principal.overrides")
    if document.get(number) == 0 and not document.get(overrides):
        text = "0 lets nobody in (allowed: 1 or more, or 0 with max.connections.per.principal.overrides)"
        yield Problem(number, text)
    # One may be wrong itself, or what should be the list of listeners.
    if not count or not all(_lacks_principals(document, ("listeners", one)) for one in range(count)):
        return
    for path in (number, overrides, ("quotas", "users")):
        if document.get(path) not in (None, UNLIMITED, "", {}):
            text = (
                "limits nobody: no client is known by its login (allowed: with security.protocol: SASL_PLAINTEXT on a "
                "listener, or with tls and SASL_SSL or ssl.client.auth)"
            )
            yield Problem(path, text, final=True)
            return


def _coordinator(document: ConfigDocument) -> Iterator[Problem]:
    """Check that the coordinator of groups has a cluster, and the features of the fleet."""
    path = ("coordinator", "enabled")
    if document.get(path) is not True:
        return
    if document.get(("internal.bootstrap.servers",)) is None:
        yield Problem(path, "true needs internal.bootstrap.servers, which is missing (allowed: false, or both)")
    elif document.get(("features", "enabled")) is False:
        yield Problem(path, "true needs features.enabled, which is false (allowed: false, or both true)")


def _lacks_principals(document: ConfigDocument, listener: Path) -> bool:
    """Return whether no client of this listener is known by a login or a certificate."""
    protocol, tls = document.get((*listener, "security.protocol")), document.get((*listener, "tls"))
    if protocol in WITH_TLS and isinstance(tls, dict):
        return protocol == "SSL" and tls.get("ssl.client.auth") in (None, "none")
    return (protocol in (None, "PLAINTEXT") and tls is None) or _passes_as_bytes(document, listener)


def _passes_as_bytes(document: ConfigDocument, listener: Path) -> bool:
    """Return whether a listener has TLS that it does not terminate. False if an unknown key may be a misspelt one."""
    given = document.get(listener)
    if document.get((*listener, "security.protocol")) not in WITH_TLS or given.get("tls") is not None:
        return False
    return _all_known(document, listener)


def _all_known(document: ConfigDocument, section: Path) -> bool:
    """Return whether a section has no unknown key, which may be a misspelt one."""
    return set(document.get(section)) <= set(below(section))


def _endpoint(document: ConfigDocument, path: Path) -> Endpoint | None:
    """Return the address at ``path``, or its default if the file has none; None if it cannot be parsed."""
    value = document.get(path)
    if value is None and path == ("admin", "bind"):
        value = str(KEYS["admin", "bind"].default)
    return _parsed(value)


def _parsed(value: object) -> Endpoint | None:
    try:
        return Endpoint.parse(value)
    except ValueError:
        return None


def _collide(one: Endpoint, other: Endpoint) -> bool:
    """Return whether two listening sockets cannot both have their address."""
    hosts = {one.host, other.host}
    return one.port == other.port and (len(hosts) == 1 or bool(hosts & WILDCARDS) or hosts <= LOOPBACK)


def _reaches(target: Endpoint, listening: Endpoint) -> bool:
    """Return whether a connection to ``target`` ends at ``listening``, as far as addresses show."""
    if target.port != listening.port:
        return False
    local = LOOPBACK | WILDCARDS
    return target.host.lower() == listening.host.lower() or (target.host in local and listening.host in local)
