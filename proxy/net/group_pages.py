"""The pages of the admin endpoint about groups of consumers.

* ``GET /coordinator``: the coordinator of this sidecar, as ``CoordinatorStatus``.
* ``GET /groups``: the groups that it coordinates, as ``GroupsListing``; ``?group=ID`` one of them with its consumers,
  404 if it is not coordinated here.
* ``POST /coordinator/evacuate``: other sidecars coordinate all groups, until ``POST /coordinator/return``; 409 where
  the coordinator is not enabled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Protocol

import msgspec
import structlog

from proxy.coordinator.status import CoordinatorStatus, GroupsListing, GroupStatus
from proxy.coordinator.view import NO_COORDINATOR
from proxy.net.http import AdminRequest, Handler, Response

log = structlog.get_logger(__name__)

NOT_ENABLED = "coordinator.enabled is false"

MAX_GROUP_SHOWN = 300
"""Characters of an id of a group that an answer repeats."""


class GroupsSource(Protocol):
    """What is needed of ``proxy.group_coordinator.GroupCoordinator``."""

    broker_id: int

    @property
    def reason(self) -> str | None:
        """Why no group is coordinated here; None where groups may be."""

    def status(self) -> CoordinatorStatus:
        """Return all about the coordinator."""

    async def list_groups(self) -> list[GroupStatus]:
        """Return all groups, without their consumers, in steps between which the event loop serves clients."""

    async def find_group(self, group_id: str) -> GroupStatus | None:
        """Return a group with its consumers; None if it is not coordinated here."""

    def coordinator_of(self, group_id: str) -> int:
        """Return the broker id of the sidecar that coordinates a group; NO_COORDINATOR: none."""

    def evacuate(self) -> None:
        """Let other sidecars coordinate all groups."""

    def return_(self) -> None:
        """Coordinate groups again."""


class GroupPages:
    """``source``: None where the coordinator is not enabled."""

    def __init__(self, source: GroupsSource | None = None) -> None:
        self._source = source

    @property
    def is_enabled(self) -> bool:
        """Whether this sidecar may coordinate groups at all."""
        return self._source is not None

    @property
    def gets(self) -> Mapping[str, Handler]:
        """The pages that only show something, by their path."""
        return {"/coordinator": self._coordinator, "/groups": self._groups}

    @property
    def posts(self) -> Mapping[str, Handler]:
        """The pages that change something, by their path."""
        return {"/coordinator/evacuate": self._evacuate, "/coordinator/return": self._return}

    def status(self) -> CoordinatorStatus:
        """Return all about the coordinator."""
        return CoordinatorStatus(NOT_ENABLED) if self._source is None else self._source.status()

    async def _coordinator(self, request: AdminRequest) -> Response:
        return _json(self.status())

    async def _groups(self, request: AdminRequest) -> Response:
        unknown = sorted(request.query.keys() - {"group"})
        if unknown:
            return _json({"error": f"there is no parameter {unknown[0]}; there is: group"}, HTTPStatus.BAD_REQUEST)
        if self._source is None:
            return _json(GroupsListing(-1, reason=NOT_ENABLED))
        wanted = request.query.get("group")
        if wanted is None:
            listing = GroupsListing(self._source.broker_id, await self._source.list_groups())
            if not listing.groups:
                listing = msgspec.structs.replace(listing, reason=self._source.reason)
        elif (found := await self._source.find_group(wanted)) is not None:
            listing = GroupsListing(self._source.broker_id, [found])
        else:
            coordinator = self._source.coordinator_of(wanted)
            error = _not_found(wanted[:MAX_GROUP_SHOWN], coordinator, self._source)
            return _json({"error": error}, HTTPStatus.NOT_FOUND)
        body = await asyncio.to_thread(msgspec.json.encode, listing)
        return Response(body + b"\n", content_type="application/json")

    async def _evacuate(self, request: AdminRequest) -> Response:
        if self._source is None:
            return _json({"error": NOT_ENABLED}, HTTPStatus.CONFLICT)
        log.info("coordinator_evacuated")
        self._source.evacuate()
        return _json({"evacuated": True})

    async def _return(self, request: AdminRequest) -> Response:
        if self._source is None:
            return _json({"error": NOT_ENABLED}, HTTPStatus.CONFLICT)
        log.info("coordinator_returned")
        self._source.return_()
        return _json({"evacuated": False})


def _not_found(group_id: str, coordinator: int, source: GroupsSource) -> str:
    if coordinator == NO_COORDINATOR:
        why = "" if source.reason is None else f"; of this sidecar: {source.reason}"
        return f"group {group_id!r} has no coordinator{why}"
    if coordinator == source.broker_id:
        return f"this sidecar coordinates group {group_id!r}, and no consumer has registered with it so far"
    return f"group {group_id!r} is coordinated by the sidecar of broker {coordinator}: ask that one (--admin)"


def _json(answer: Any, status: int = HTTPStatus.OK) -> Response:
    return Response(msgspec.json.encode(answer) + b"\n", status, "application/json")
