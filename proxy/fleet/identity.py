"""Whether ``broker.id`` is that of the broker behind listeners that nobody can be asked on without a login (pure).

A PLAINTEXT listener is asked over its upstream. One with SASL or TLS is not: there the cluster says which brokers it
has, and each broker which addresses it advertises to clients.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from proxy.config import Config, Endpoint, Listener

ADVERTISED_LISTENERS = "advertised.listeners"


def broker_absent(broker_id: int, brokers: Iterable[int]) -> str:
    """Return the sentence for a cluster that has no broker ``broker_id``."""
    ids = ", ".join(map(str, sorted(brokers)))
    return f"broker.id is {broker_id}, but the cluster of internal.bootstrap.servers has only {ids}"


def listeners_to_identify(config: Config) -> list[Listener]:
    """Return the listeners whose broker must advertise their address, and whose upstream cannot be asked."""
    return [one for one in config.listeners if one.security_protocol != "PLAINTEXT" and not one.rewrite_addresses]


def advertised_by_other(
    config: Config, listeners: Iterable[Listener], other: int, advertised: Collection[Endpoint]
) -> str | None:
    """Return the sentence for a listener whose address is one that broker ``other`` advertises; None without one."""
    for listener in listeners:
        if listener.advertised in advertised:
            return (
                f"listener {listener.name}: {listener.advertised} is what broker {other} advertises, "
                f"but broker.id is {config.broker_id}; one of the two is wrong"
            )
    return None


def endpoints_of(value: str) -> frozenset[Endpoint]:
    """Return the addresses in ``advertised.listeners``, as ``CLIENT://kafka-1.example:9092,…``; others are left out."""
    found = set()
    for part in value.split(","):
        try:
            found.add(Endpoint.parse(part.partition("://")[2].strip()))
        except ValueError:
            continue
    return frozenset(found)
