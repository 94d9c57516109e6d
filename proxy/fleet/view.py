"""Builds the view of the fleet that clients get, from this broker, the cluster and the other sidecars (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from msgspec import UNSET

from proxy import __version__
from proxy.config import Config
from proxy.features.catalog import LevelRange
from proxy.features.records import SupportedRange
from proxy.fleet.membership import Member
from proxy.fleet.sidecar_record import MAX_ENDPOINTS, MAX_TEXT, SidecarRecord
from proxy.interceptors import tags
from proxy.interceptors.broker_metadata import BrokerView, FleetView
from proxy.interceptors.tags import BrokerCapabilities
from proxy.protocol.versions import UNKNOWN

SIDECAR, BROKER, NOBODY = "sidecar", "broker", "unknown"
"""Sources of a broker's range of ProtocolVersions: its sidecar, the broker itself, nobody."""


NO_CAPABILITIES = BrokerCapabilities(UNKNOWN, None, {})
"""For a broker whose ApiVersions are not known."""


class OwnFeatures(NamedTuple):
    """What this sidecar registers about its features; see ``SidecarRecord``. ``supported``: empty without features."""

    supported: Mapping[str, LevelRange] = {}
    applied_epoch: int = -1
    effective: Mapping[str, int] = {}
    undelivered_above: int = 0
    holds: Mapping[str, int] = {}
    groups_above: int = 0


class OwnGroups(NamedTuple):
    """What this sidecar registers about groups of consumers; see ``SidecarRecord``."""

    coordinates: bool = False
    holds: Mapping[str, int] = {}


class OwnBroker(NamedTuple):
    """What is known about this sidecar and its broker. ``node_id``: as the broker says, else as configured."""

    node_id: int
    said: BrokerCapabilities = NO_CAPABILITIES
    message_max_bytes: str | None = None
    cluster_id: str = ""
    rack: str | None = None
    features: OwnFeatures = OwnFeatures()
    groups: OwnGroups = OwnGroups()


def build_own_view(config: Config, own: OwnBroker) -> BrokerView:
    """Return what this sidecar returns to clients about its broker."""
    known = own.said.range
    found = {
        "broker.id": str(own.node_id),
        **tags.version_tags(config.broker_version, own.said.release),
        **own.said.tags,
    }
    if own.message_max_bytes is not None:
        found["message.max.bytes"] = own.message_max_bytes
    endpoints = ",".join(
        f"{listener.security_protocol.lower()}://{listener.advertised}" for listener in config.listeners
    )
    if len(endpoints) > MAX_TEXT:
        endpoints = endpoints[: MAX_TEXT + 1].rpartition(",")[0]
    found["endpoints"] = endpoints
    if own.cluster_id:
        found["cluster.id"] = own.cluster_id
    found["protocol.version.source"] = SIDECAR if known != UNKNOWN else NOBODY
    found["sidecar.version"] = __version__
    if own.features.supported:
        found["sidecar.features"] = ",".join(
            f"{name}={levels.min}-{levels.max}" for name, levels in own.features.supported.items()
        )
    if own.features.applied_epoch >= 0:
        found["brokerside.features.epoch"] = str(own.features.applied_epoch)
    addresses = {
        listener.name.lower(): (listener.advertised.host, listener.advertised.port) for listener in config.listeners
    }
    return BrokerView(own.node_id, addresses, known.min, known.max, {**found, **config.tags})


def build_own_record(config: Config, own: OwnBroker, *, boot_id: str, started_ms: int) -> SidecarRecord:
    """Return the record of this sidecar for the registry."""
    view = build_own_view(config, own)
    listeners = config.listeners[:MAX_ENDPOINTS]
    first = listeners[0].advertised
    return SidecarRecord(
        listener_security_protocol_map={one.name: one.security_protocol for one in listeners},
        endpoints=tuple(f"{one.name}://{one.advertised}" for one in listeners),
        host=first.host,
        port=first.port,
        timestamp=str(started_ms),
        rack=own.rack,
        sidecar_version=__version__,
        boot_id=boot_id,
        metrics_port=config.admin.bind.port,
        protocol_version_min=view.protocol_min,
        protocol_version_max=view.protocol_max,
        tags=view.tags,
        features={name: SupportedRange(*levels) for name, levels in own.features.supported.items()},
        applied_epoch=own.features.applied_epoch,
        effective=own.features.effective,
        undelivered_above=own.features.undelivered_above,
        groups_above=own.features.groups_above,
        holds={**own.features.holds, **own.groups.holds},
        coordinates=own.groups.coordinates or UNSET,
    )


def build_fleet_view(
    mine: BrokerView,
    running: Collection[int] | None,
    members: Mapping[int, Member] | None,
    asked: Mapping[int, BrokerCapabilities],
) -> FleetView:
    """Return all brokers that run, and the addresses of those that do not: they may come back at any time.

    ``running``: ids of the brokers that run; None before the cluster has answered. ``members``: the sidecars; None
    before the registry was read. ``asked``: ApiVersions of the brokers that have no running sidecar.
    """
    seen = members or {}
    if running is None:
        running = [node_id for node_id, one in seen.items() if one.alive]
    peers = (
        _peer(node_id, seen.get(node_id), asked.get(node_id, NO_CAPABILITIES), certain=members is not None)
        for node_id in sorted(running)
        if node_id != mine.node_id
    )
    away = (
        BrokerView(node_id, seen[node_id].record.addresses, running=False)
        for node_id in sorted(seen.keys() - set(running))
        if node_id != mine.node_id
    )
    return FleetView(mine.node_id, (mine, *peers, *away))


def brokers_without_sidecar(running: Collection[int], members: Mapping[int, Member]) -> list[int]:
    """Return the brokers that have no running sidecar."""
    return [node_id for node_id in running if node_id not in members or not members[node_id].alive]


def _peer(node_id: int, seen: Member | None, said: BrokerCapabilities, *, certain: bool) -> BrokerView:
    if seen is not None and seen.alive:
        record = seen.record
        low, high = record.protocol_version_min, record.protocol_version_max
        source = record.tags.get("protocol.version.source", NOBODY)
        return _view(node_id, seen, low, high, {"broker.id": str(node_id), "protocol.version.source": source})
    found = {
        "broker.id": str(node_id),
        **tags.version_tags(None, said.release),
        **said.tags,
        "protocol.version.source": BROKER if said.range != UNKNOWN else NOBODY,
    }
    if certain:
        found["sidecar"] = "absent"
    return _view(node_id, seen, said.range.min, said.range.max, found)


def _view(node_id: int, seen: Member | None, low: int, high: int, found: Mapping[str, str]) -> BrokerView:
    """Return a view with the tags of the sidecar's record and ``found``, which wins; invalid tags are left out."""
    if seen is None:
        return BrokerView(node_id, {}, low, high, found)
    merged = {**seen.record.tags, **found}
    if found["protocol.version.source"] == NOBODY:
        merged.pop("protocol.version.exact", None)
    for name in tags.invalid_tag_names(merged):
        del merged[name]
    return BrokerView(node_id, seen.record.addresses, low, high, merged)
