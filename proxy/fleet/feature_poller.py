"""Follows the finalized levels of the fleet's features, and is the controller where the election says so.

It feeds the controller (``proxy.features.controller``), which is pure, with what the topics say, and carries out its
effects. All of it is on the loop; librdkafka's calls are on threads. No client ever waits for it but for an update.

A sidecar registers its supported levels first, and reads the finalized ones after: when it has read its own record back
from the registry, it measures the end of the topic of features, and reads up to there. Then it is *settled*. Before,
nothing counts as finalized.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import structlog

from proxy.config import Config, hmac_keys
from proxy.core.authentication import Authenticator
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, SUPPORTED, LevelRange
from proxy.features.controller import FeatureController
from proxy.features.controller_states import (
    CloseProducer,
    ControllerState,
    Effect,
    FencePredecessor,
    LogLine,
    ReadRegistry,
    WriteRecords,
)
from proxy.features.levels import FleetLevels, fleet_levels
from proxy.features.participants import Participant
from proxy.features.records import SupportedRange
from proxy.features.status import FeaturesStatus, ProposalStatus, status_of
from proxy.features.updates import UpdateRequest, UpdateResult
from proxy.features.view import FeaturesView
from proxy.fleet.election import Decision, Election
from proxy.fleet.feature_updates import FeatureUpdates
from proxy.fleet.features_thread import FeaturesThread
from proxy.fleet.fenced_writer import FencedWriter
from proxy.fleet.membership import HEARTBEAT_INTERVAL, RegistryContent
from proxy.fleet.registered_features import HOLD, LOG, claims_of, participants_of
from proxy.fleet.suspicion import DIAL_INTERVAL, Suspicion, refuses_connections
from proxy.fleet.topic_spec import FEATURES_TOPIC, TopicRecord
from proxy.fleet.view import OwnFeatures

TRANSACTIONAL_ID = "brokerside-features-0"
"""``transactional.id`` of all controllers: the next one fences the one before."""

TICK_INTERVAL = 0.5
"""Seconds between two looks at the time."""

APPLY_INTERVAL, LAST_APPLY_INTERVAL = 0.1, 1.0
"""Seconds between two questions to all processes whether they follow the finalized levels: doubled with each answer
that one does not, since what it has to deliver first may take long."""

SETTLE_WAIT = 5.0
"""Seconds that a sidecar is not ready at most because it does not know the finalized levels."""

NOT_SETTLED = "features: the finalized levels are not known yet"

log = structlog.get_logger(__name__)


class AuditLevels(NamedTuple):
    """What the audit of all processes does. ``levels``: numbers of processes by the level in use; empty without audit.

    ``undelivered``: events that are not on the topic yet, by level.
    """

    levels: Mapping[int, int] = {}
    undelivered: Mapping[int, int] = {}


class Registry(Protocol):
    """What is needed of ``FleetPoller``."""

    boot_id: str
    features_leader: int | None

    def on_registry(self, callback: Callable[[RegistryContent, bool], None]) -> None:
        """Call ``callback`` with what the registry has, whenever some of it was read, and whether all was."""

    def read_registry(self, done: Callable[[], None]) -> None:
        """Call ``done`` when all is read, and was reported, that the registry has after this call."""

    def update_features(self, features: OwnFeatures) -> None:
        """Register other facts about the features of this sidecar."""


class FeaturePoller:
    """Runs from ``start`` to ``close``. Needs a cluster, and ``features.enabled``."""

    def __init__(
        self,
        config: Config,
        registry: Registry,
        on_view: Callable[[FeaturesView], None],
        on_problem: Callable[[str | None], None],
        audit_levels: Callable[[], Awaitable[AuditLevels]],
        *,
        supported: Mapping[str, LevelRange] = SUPPORTED,
    ) -> None:
        """Callbacks are called on the loop, with each change.

        ``on_problem`` gets what keeps the sidecar from being ready, and None when that has ended. ``audit_levels``:
        returns when all processes that answer follow the last view. ``supported``: the levels of this release.
        """
        self._config = config
        self._registry = registry
        self._on_view = on_view
        self._on_problem = on_problem
        self._audit_levels = audit_levels
        self._supported = supported
        self._broker_id = config.broker_id
        self._settings = config.internal_client_settings()
        self._client_id = f"brokerside-features-{config.broker_id}"
        self._controller = FeatureController(config.broker_id, registry.boot_id, supported=supported)
        self._election = Election(LOG, 0, config.broker_id)
        self._topic = FeaturesThread(
            self._settings, self._client_id, self._authenticator(), self._on_records, self._on_restart
        )
        self._updates = FeatureUpdates(config.broker_id, registry.boot_id, self._controller, self._propose)
        self._writer: FencedWriter | None = None
        self._write_failure: str | None = None
        self._suspicion = Suspicion(config.broker_id)
        self._content: RegistryContent | None = None
        self._registered = self._settled = False
        self._levels = fleet_levels(supported, None)
        self._view: FeaturesView | None = None
        self._own = OwnFeatures(supported, effective=self._levels.in_use)
        self._lost_logged = False
        self._ignored = set[str]()  # reasons that were logged
        self._changed = asyncio.Event()
        self._accepting = self._was_ready = self._resigned = False
        self._problem: str | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start to follow the levels, on the running loop."""
        self._settle_until = asyncio.get_running_loop().time() + SETTLE_WAIT
        self._registry.on_registry(self._on_registry)
        self._registry.update_features(self._own)
        self._topic.start()
        self._publish()
        self._tasks = [
            asyncio.create_task(one) for one in (self._run_ticks(), self._run_suspicion(), self._run_applied())
        ]

    def mark_accepting(self) -> None:
        """Note that the sidecar accepts connections. What is found once it is ready does not make it unready."""
        self._accepting = True
        self._report_problem()

    def reconfigure(self, config: Config) -> None:
        """Take over a changed ``features.forward``."""
        self._config = config
        self._publish()

    async def update(self, request: UpdateRequest) -> UpdateResult:
        """Ask the controller for an update, and wait until it is in force in all sidecars that run. Raises nothing."""
        return await self._updates.update(request)

    def status(self) -> FeaturesStatus:
        """Return all that is known."""
        topic = self._controller.topic
        return FeaturesStatus(
            settled=self._settled,
            epoch=self._levels.epoch,
            applied_epoch=self._own.applied_epoch,
            supported={name: SupportedRange(*levels) for name, levels in self._supported.items()},
            record=topic.finalized,
            in_use=self._levels.in_use,
            problems=self._levels.problems,
            undelivered_above=self._own.undelivered_above,
            controller=topic.claim.broker_id if topic.claim is not None else -1,
            state=self._controller.state.value,
            participants=[status_of(one, self._supported) for one in self._participants()],
            proposals=[
                ProposalStatus(
                    update, one.proposal.asked_by, {each.feature: each.level for each in one.proposal.updates}, one.at
                )
                for update, one in topic.proposals.items()
            ],
            updates=self._updates.results,
        )

    def resign(self) -> None:
        """Answer all updates, and let another sidecar be the controller. Levels are followed until ``close``: clients
        are served, and events are written, for as long as the drain takes."""
        self._resigned = True
        self._updates.close()
        self._run(self._controller.lost("the sidecar ends", self._now()))

    async def close(self) -> None:
        """Stop, after ``resign``."""
        self.resign()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._topic.close()

    def _authenticator(self) -> Authenticator | None:
        return hmac_keys.authenticator(hmac_keys.FEATURES, self._config.registry.hmac_keys_file)

    @staticmethod
    def _now() -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def _participants(self) -> Sequence[Participant]:
        return participants_of(self._suspicion.judge(self._content)) if self._content is not None else ()

    def _on_registry(self, content: RegistryContent, end: bool) -> None:
        if self._content is None and not end:
            return
        self._content = content
        self._suspicion.read(content, self._now())
        self._updates.registry_changed(content)
        own = content.sidecars.get(self._broker_id)
        if not self._registered and own is not None and own.record.boot_id == self._registry.boot_id:
            self._registered = bool(own.record.features)
            if self._registered:
                self._topic.read_to_end(self._on_settled)
        self._on_participants()

    def _on_participants(self) -> None:
        if self._controller.state is not ControllerState.AWAY:
            self._run(self._controller.participants_changed(self._participants(), self._now()))
        self._decide()

    def _on_settled(self) -> None:
        self._settled = True
        log.info("features_settled", epoch=fleet_levels(self._supported, self._controller.topic.finalized).epoch)
        self._publish()

    def _on_records(self, records: Sequence[TopicRecord]) -> None:
        at_now = int(time.time() * 1000)
        dated = [(key, value, at_now if at is None else at) for key, value, at in records]
        self._run(self._controller.records(dated, self._now()))
        for reason in self._controller.topic.ignored.keys() - self._ignored:
            self._ignored.add(reason)
            log.warning("features_record_ignored", reason=reason)
        self._updates.topic_changed()
        self._publish()

    def _on_restart(self) -> None:
        self._run(self._controller.restarted(self._now()))

    async def _run_ticks(self) -> None:
        while True:
            await asyncio.sleep(TICK_INTERVAL)
            self._run(self._controller.tick(self._now()))
            self._decide()
            self._report_problem()

    async def _run_suspicion(self) -> None:
        """Find out whether the controller has been killed, once its record is late."""
        while True:
            await asyncio.sleep(DIAL_INTERVAL)
            for late in self._suspicion.late(self._content, self._now()) if self._content is not None else ():
                if await refuses_connections(late.host, late.port):
                    log.info("sidecar_suspected", broker_id=late.node_id, address=f"{late.host}:{late.port}")
                    self._suspicion.refused(late)
                    self._on_participants()

    def _decide(self) -> None:
        """Become the controller, or stop being it, as the election says."""
        if self._content is None or not self._settled or self._resigned:
            return
        claims = claims_of(self._suspicion.judge(self._content), self._broker_id, self._registry.boot_id)
        match self._election.decide(self._registry.features_leader, claims, self._now()):
            case Decision.TAKE:
                self._run(self._controller.participants_changed(self._participants(), self._now()))
                self._run(self._controller.hold(self._now()))
            case Decision.LET_GO:
                self._run(self._controller.lost("another sidecar is to be the controller", self._now()))
            case Decision.STAY:
                pass

    def _run(self, effects: Iterable[Effect]) -> None:
        """Carry out the controller's effects, in their order."""
        for effect in effects:
            match effect:
                case FencePredecessor(number):
                    self._open_writer(number)
                case WriteRecords(number, records):
                    assert self._writer is not None
                    self._writer.write(records, lambda error, number=number: self._on_written(number, error))  # type: ignore[misc]
                case ReadRegistry(number):
                    self._registry.read_registry(lambda number=number: self._on_barrier(number))  # type: ignore[misc]
                case CloseProducer():
                    self._close_writer()
                case LogLine(event, fields):
                    self._log(event, fields)
        if self._own.holds != self._holds():
            self._register()
        self._publish_view()

    def _holds(self) -> Mapping[str, int]:
        return {HOLD: self._controller.claim} if self._controller.claim else {}

    def _open_writer(self, number: int) -> None:
        def opened() -> None:
            self._run(self._controller.opened(number, self._now()))

        self._writer = FencedWriter(
            FEATURES_TOPIC,
            TRANSACTIONAL_ID,
            {**self._settings, "client.id": self._client_id},
            self._authenticator(),
            self._on_lost,
        )
        self._writer.start(lambda: self._topic.read_to_end(opened))

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.stop()
            self._writer = None
        self._election.lost(self._now())

    def _on_lost(self, reason: str) -> None:
        self._run(self._controller.lost(reason, self._now()))

    def _on_written(self, number: int, error: str | None) -> None:
        """Report a write to the controller, which repeats a failed one."""
        self._log_write(error)
        report = self._controller.written if error is None else self._controller.write_failed
        self._run(report(number, self._now()))

    def _propose(self, key: bytes, value: bytes, seconds: float, done: Callable[[str | None], None]) -> None:
        def written(error: str | None) -> None:
            self._log_write(error)
            done(error)

        self._topic.propose(key, value, seconds, written)

    def _log_write(self, error: str | None) -> None:
        """Log the first of several failures, and the next success."""
        if error is not None and self._write_failure is None:
            log.warning("features_not_written", error=error)
        elif error is None and self._write_failure is not None:
            log.info("features_written")
        self._write_failure = error

    def _on_barrier(self, number: int) -> None:
        self._run(self._controller.barrier_passed(number, self._participants(), self._now()))

    def _publish(self) -> None:
        """Follow the levels that were read last."""
        before = self._levels
        self._levels = fleet_levels(self._supported, self._controller.topic.finalized if self._settled else None)
        if self._levels != before:
            self._log_problems(before)
            self._register()
        self._publish_view()
        self._report_problem()

    def _publish_view(self) -> None:
        levels = self._levels
        view = FeaturesView(
            self._supported,
            levels.finalized,
            levels.epoch,
            forward=self._config.features.forward,
            is_controller=self._controller.state not in (ControllerState.AWAY, ControllerState.OPENING),
            levels=levels.in_use,
        )
        if view != self._view:
            self._view = view
            self._on_view(view)
            self._changed.set()

    def _log_problems(self, before: FleetLevels) -> None:
        for name, problem in self._levels.problems.items():
            if before.problems.get(name) != problem:
                log.warning("features_incompatible", feature=name, problem=problem)

    def _register(self) -> None:
        self._own = self._own._replace(effective=self._levels.in_use, holds=self._holds())
        self._registry.update_features(self._own)

    def _report_problem(self) -> None:
        """Report what keeps a sidecar that was never ready from it, if that has changed."""
        problem = None
        if not self._was_ready:
            if self._levels.problems:
                name, what = next(iter(sorted(self._levels.problems.items())))
                problem = (
                    f"feature {name}: {what}; run a release that supports them, or lower them first: "
                    "brokerside features downgrade"
                )
            elif not self._settled and asyncio.get_running_loop().time() < self._settle_until:
                problem = NOT_SETTLED
            else:
                self._was_ready = self._accepting
        if problem != self._problem:
            self._problem = problem
            self._on_problem(problem)

    async def _run_applied(self) -> None:
        """Find out, after each change and now and then, whether all processes follow the levels."""
        wait = APPLY_INTERVAL
        while True:
            self._changed.clear()
            levels = self._levels
            try:
                found = await self._audit_levels()
                if levels == self._levels:
                    self._report_applied(found)
            except Exception:
                log.exception("features_poller_failed")  # a mistake of ours must not end the task
            applied = self._own.applied_epoch == self._levels.epoch
            try:
                async with asyncio.timeout(HEARTBEAT_INTERVAL if applied else wait):
                    await self._changed.wait()
                wait = APPLY_INTERVAL
            except TimeoutError:
                wait = APPLY_INTERVAL if applied else min(2 * wait, LAST_APPLY_INTERVAL)

    def _report_applied(self, found: AuditLevels) -> None:
        """Register the epoch of the levels that all processes follow, once nothing above them is left to deliver."""
        level = self._levels.in_use.get(AUDIT_EVENT_SCHEMA, 0)
        above = sum(events for of, events in found.undelivered.items() if of > level)
        follows = all(of == level for of in found.levels)
        epoch = self._levels.epoch if follows and not above else self._own.applied_epoch
        if (epoch, above) != (self._own.applied_epoch, self._own.undelivered_above):
            self._own = self._own._replace(applied_epoch=epoch, undelivered_above=above)
            self._register()

    def _log(self, event: str, fields: Mapping[str, object]) -> None:
        """Log an event of the controller. Of several attempts in vain to become it, the first is logged."""
        match event:
            case "feature_controller":
                if not self._lost_logged or fields["change"] != "lost":
                    log.info("feature_controller", **fields)
                self._lost_logged = fields["change"] == "lost"
            case "features_finalized":
                log.info("features_finalized", **fields)
            case _:
                log.info("features_refused", **fields)
