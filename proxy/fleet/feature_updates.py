"""Updates of finalized levels that clients ask this sidecar for: each is proposed to the controller, and waits."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable

from proxy.features.controller import FeatureController
from proxy.features.records import UpdateOutcome, UpdateProposal, encode, update_key
from proxy.features.status import UPDATE_RESULTS
from proxy.features.topic_state import MAX_OPEN_PROPOSALS
from proxy.features.updates import (
    ENDED,
    ENDING,
    FEATURE_UPDATE_FAILED,
    IN_PROGRESS,
    INVALID_UPDATE_VERSION,
    MAY_BE_MADE,
    NONE,
    UpdateRequest,
    UpdateResult,
    wait_ms,
)
from proxy.fleet.membership import RegistryContent
from proxy.fleet.registered_features import unapplied

Propose = Callable[[bytes, bytes, float, Callable[[str | None], None]], None]
"""Writes a record by key and value within some seconds; the last argument gets None when the topic has it, else why it
has not."""

NO_ANSWER = f"no feature controller answers{MAY_BE_MADE}"

MAX_NAMED = 10
"""Sidecars that a message names."""


class FeatureUpdates:
    """For the event loop's thread. ``results``: numbers of updates that ended, by ``UPDATE_RESULTS``."""

    def __init__(self, broker_id: int, boot_id: str, controller: FeatureController, propose: Propose) -> None:
        """``controller``: knows what the topic says."""
        self.results: Counter[str] = Counter(dict.fromkeys(UPDATE_RESULTS, 0))
        self._broker_id = broker_id
        self._boot_id = boot_id
        self._controller = controller
        self._propose = propose
        self._registry = RegistryContent({}, {}, {})
        self._waiting = 0
        self._closed = False
        self._changed = asyncio.Event()

    def topic_changed(self) -> None:
        """Look whether outcomes were read."""
        self._changed.set()
        self._changed = asyncio.Event()

    def registry_changed(self, content: RegistryContent) -> None:
        """Look whether sidecars have applied what updates wait for."""
        self._registry = content
        self.topic_changed()

    def close(self) -> None:
        """Answer all updates now, and later ones at once: nothing is read any more. A drain waits for these answers."""
        self._closed = True
        self.topic_changed()

    async def update(self, request: UpdateRequest) -> UpdateResult:
        """Propose an update, and wait until it is in force in all sidecars that run. Raises nothing."""
        if self._closed:
            result = ENDING
        elif request.timeout_ms <= 0:
            result = _failed(f"timeoutMs is {request.timeout_ms}; an update takes longer")
        elif self._waiting >= MAX_OPEN_PROPOSALS:
            result = _failed(f"{IN_PROGRESS}{self._waiting} updates wait at this sidecar")
        else:
            self._waiting += 1
            try:
                result = await self._ask(request)
            finally:
                self._waiting -= 1
        labels = {NONE: "ok", INVALID_UPDATE_VERSION: "refused"}
        self.results[labels.get(result.error_code, "failed")] += 1
        return result

    async def _ask(self, request: UpdateRequest) -> UpdateResult:
        update = uuid.uuid4().hex
        failures: list[str] = []

        def written(error: str | None) -> None:
            if error is not None:
                failures.append(error)
                self.topic_changed()

        proposal = UpdateProposal(
            asked_by=self._broker_id,
            boot_id=self._boot_id,
            timeout_ms=request.timeout_ms,
            updates=request.updates,
            validate_only=request.validate_only,
            api_version=request.api_version,
            principal=request.principal,
            client_ip=request.client_ip,
            listener=request.listener,
        )
        outcome: UpdateOutcome | None = None
        late = list[str]()
        seconds = wait_ms(request.timeout_ms) / 1000
        self._propose(update_key(update), encode(proposal), seconds, written)
        try:
            async with asyncio.timeout(seconds):
                while (outcome := self._outcome(update)) is None and not failures:
                    await self._next_change()
                if outcome is None:
                    return _failed(f"the update could not be written: {failures[0]}{MAY_BE_MADE}")
                if outcome.code:
                    return UpdateResult(outcome.code, outcome.message)
                while late := unapplied(self._registry, outcome.waits_for, outcome.epoch, self._last_epoch()):
                    await self._next_change()
        except TimeoutError:
            if outcome is None:
                return ENDED if self._closed else _failed(NO_ANSWER)
            names = ", ".join(late[:MAX_NAMED]) + (f" and {len(late) - MAX_NAMED} more" if late[MAX_NAMED:] else "")
            wanted = ", ".join(f"{one.feature} is finalized" for one in request.updates[:MAX_NAMED])
            return _failed(f"{wanted} at epoch {outcome.epoch}; not applied yet by {names}")
        return UpdateResult(NONE)

    async def _next_change(self) -> None:
        """Raises TimeoutError when there is none any more."""
        await self._changed.wait()
        if self._closed:
            raise TimeoutError

    def _last_epoch(self) -> int:
        topic = self._controller.topic
        return topic.finalized.epoch if topic.present and topic.finalized is not None else -1

    def _outcome(self, update: str) -> UpdateOutcome | None:
        found = self._controller.topic.outcomes.get(update)
        return found.outcome if found is not None else None


def _failed(message: str) -> UpdateResult:
    return UpdateResult(FEATURE_UPDATE_FAILED, message)
