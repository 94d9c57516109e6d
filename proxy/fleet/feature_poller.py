"""Follows the finalized levels of the fleet's features, and is the controller where the election says so.

It feeds the controller (``proxy.features.controller``), which is pure, with what the topics say, and carries out its
effects. All of it is on the loop; librdkafka's calls are on threads. No client ever waits for it but for an update.

A sidecar registers its supported levels first, and reads the finalized ones after: when it has read its own record back
from the registry, it measures the end of the topic of features, and reads up to there. Then the levels are *loaded*.
Before, nothing counts as finalized.

A successor registers only when its predecessor does not any more: they have one record. Until then it reads the levels
to find out whether it supports them, and uses none of them. The predecessor follows the levels until it ends, and
reports to the successor what it would register (``hand_over``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

import structlog

from proxy.config import Config, hmac_keys
from proxy.core.authentication import Authenticator
from proxy.features.catalog import SUPPORTED, LevelRange
from proxy.features.controller import FeatureController
from proxy.features.controller_states import (
    CloseProducer,
    ControllerState,
    Effect,
    FencePredecessor,
    LogLine,
    ReadRegistry,
    WriteTransaction,
)
from proxy.features.levels import FleetLevels, fleet_levels
from proxy.features.participants import Participant
from proxy.features.records import SupportedRange
from proxy.features.status import FeaturesStatus, ProposalStatus, status_of
from proxy.features.updates import UpdateRequest, UpdateResult
from proxy.features.view import FeaturesView
from proxy.fleet.applied_epoch import Applied, AppliedEpoch, AuditLevels, GroupLevels
from proxy.fleet.election import Decision, Election
from proxy.fleet.feature_updates import FeatureUpdates
from proxy.fleet.features_thread import FeaturesThread
from proxy.fleet.fenced_writer import FencedWriter
from proxy.fleet.membership import HEARTBEAT_INTERVAL, RegistryContent
from proxy.fleet.registered_features import HOLD, LOG, claims_of, participants_of
from proxy.fleet.suspicion import Dialler, LateSidecar, Suspicion
from proxy.fleet.topic_spec import FEATURES_TOPIC, TopicRecord
from proxy.fleet.view import OwnFeatures

TRANSACTIONAL_ID = "brokerside-features-0"
"""``transactional.id`` of all controllers: the next one fences the one before."""

TICK_INTERVAL = 1.0
"""Seconds between two looks at the time, and two attempts to connect to a sidecar whose record is late."""

APPLY_INTERVAL, LAST_APPLY_INTERVAL = 0.1, 1.0
"""Seconds between two questions to all processes whether they follow the finalized levels: doubled with each answer
that one does not, since what it has to deliver first may take long."""

LOAD_WAIT = 5.0
"""Seconds that a sidecar is not ready at most because it does not know the finalized levels."""

NOT_LOADED = "features: the finalized levels are not known yet"

log = structlog.get_logger(__name__)


class Registry(Protocol):
    """What is needed of ``FleetPoller``."""

    boot_id: str
    features_leader: int | None
    group_leaders: Sequence[int | None]

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
        group_levels: Callable[[], GroupLevels] = GroupLevels,
        *,
        inherits: bool = False,
        supported: Mapping[str, LevelRange] = SUPPORTED,
    ) -> None:
        """Callbacks are called on the loop, with each change.

        ``on_problem`` gets what keeps the sidecar from being ready, and None when that has ended. ``audit_levels``:
        returns when all processes that answer follow the last view. ``group_levels``: of the coordinator; the default
        is that of a sidecar without one. ``inherits``: this sidecar takes over from another
        process, which is registered in its place until then. ``supported``: the levels of this release.
        """
        self._config = config
        self._registry = registry
        self._on_view = on_view
        self._on_problem = on_problem
        self._audit_levels, self._group_levels = audit_levels, group_levels
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
        self._suspicion = Suspicion(config.broker_id, LOG)
        self._dialler = Dialler(self._on_refused)
        self._content: RegistryContent | None = None
        self._registered = self._loaded = False
        self._was_read = False  # to the end; a successor then knows whether it supports them
        self._inherits = inherits
        self._applied = AppliedEpoch(inherits=inherits)
        self._report_applied: Callable[[Applied], None] | None = None
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
        self._load_until = asyncio.get_running_loop().time() + LOAD_WAIT
        self._registry.on_registry(self._on_registry)
        self._registry.update_features(self._own)
        self._topic.start()
        if self._inherits:
            self._topic.read_to_end(self._on_first_read)
        self._publish()
        self._tasks = [asyncio.create_task(one) for one in (self._run_ticks(), self._run_applied())]

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
            loaded=self._loaded,
            epoch=self._levels.epoch,
            applied_epoch=self._own.applied_epoch,
            supported={name: SupportedRange(*levels) for name, levels in self._supported.items()},
            record=topic.finalized,
            in_use=self._levels.in_use,
            problems=self._levels.problems,
            undelivered_above=self._own.undelivered_above,
            groups_above=self._own.groups_above,
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

    def predecessor_applies(self, applied: Applied) -> None:
        """Note what the predecessor, which drains, has applied."""
        self._applied.predecessor_applies(applied)
        self._register()

    def predecessor_ended(self) -> None:
        """Note that the predecessor has ended."""
        self._applied.predecessor_ended(time.monotonic())
        self._changed.set()

    def hand_over(self, report: Callable[[Applied], None]) -> None:
        """Call ``report`` with what this sidecar applies, now and with each change: a successor registers it."""
        self._report_applied = report
        report(self._applied.registered)

    async def close(self) -> None:
        """Stop, after ``resign``."""
        self.resign()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._dialler.close()
        await self._topic.close()

    def _authenticator(self) -> Authenticator | None:
        return hmac_keys.authenticator(hmac_keys.FEATURES, self._config.registry.hmac_keys_file)

    @staticmethod
    def _now() -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def _participants(self) -> Sequence[Participant]:
        return participants_of(self._content) if self._content is not None else ()

    def _on_registry(self, content: RegistryContent, end: bool) -> None:
        if self._content is None and not end:
            return
        self._suspicion.read(content, self._now())
        before, self._content = self._content, self._suspicion.judge(content)
        if before is not None and (before.sidecars, before.readers) == (self._content.sidecars, content.readers):
            return  # who runs has written again what was known, as everybody does every few seconds
        own = content.sidecars.get(self._broker_id)
        if not self._registered and own is not None and own.record.boot_id == self._registry.boot_id:
            self._registered = bool(own.record.features)
            if self._registered:
                self._topic.read_to_end(self._on_loaded)
        self._on_participants(self._content)

    def _on_refused(self, late: LateSidecar) -> None:
        if self._content is None or self._resigned:
            return
        log.info("sidecar_suspected", broker_id=late.node_id, address=f"{late.host}:{late.port}")
        self._suspicion.refused(late)
        self._content = self._suspicion.judge(self._content)
        self._on_participants(self._content)

    def _on_participants(self, content: RegistryContent) -> None:
        self._updates.registry_changed(content)
        if self._controller.state is not ControllerState.AWAY:
            self._run(self._controller.participants_changed(self._participants(), self._now()))
        self._decide()

    def _on_first_read(self) -> None:
        self._was_read = True
        self._report_problem()

    def _on_loaded(self) -> None:
        self._loaded = True
        log.info("features_loaded", epoch=fleet_levels(self._supported, self._controller.topic.finalized).epoch)
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
            try:
                self._controller.group_partitions = len(self._registry.group_leaders)
                self._run(self._controller.tick(self._now()))
                self._decide()
                self._report_problem()
                self._suspect()
            except Exception:
                log.exception("features_poller_failed")  # a mistake of ours must not end the task

    def _suspect(self) -> None:
        """Find out whether the controller has been killed, once its record is late."""
        if self._content is None or not self._loaded or self._resigned:
            return
        for late in self._suspicion.late(self._content, self._now()):
            self._dialler.dial(late)

    def _decide(self) -> None:
        """Become the controller, or stop being it, as the election says."""
        if self._content is None or not self._loaded or self._resigned:
            return
        claims = claims_of(self._content, self._broker_id, self._registry.boot_id)
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
                case WriteTransaction(number, records):
                    assert self._writer is not None
                    self._writer.write(records, lambda error, began, number=number: self._on_written(number, error))  # type: ignore[misc]
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
        self._levels = fleet_levels(self._supported, self._controller.topic.finalized if self._loaded else None)
        if self._levels != before:
            self._log_problems(before)
            self._register()
        self._publish_view()
        self._report_problem()

    def _publish_view(self) -> None:
        levels, groups = self._levels, self._controller.topic.groups
        view = FeaturesView(
            self._supported,
            levels.finalized,
            levels.epoch,
            forward=self._config.features.forward,
            is_controller=self._controller.state not in (ControllerState.AWAY, ControllerState.OPENING),
            levels=levels.in_use,
            group_partitions=groups.partitions if groups is not None and self._loaded else 0,
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
        before, applied = self._own, self._applied.registered
        self._own = before._replace(
            effective=self._levels.in_use,
            holds=self._holds(),
            applied_epoch=applied.epoch,
            undelivered_above=applied.undelivered_above,
            groups_above=self._applied.groups_above,
        )
        self._registry.update_features(self._own)
        if self._report_applied is not None and applied != (before.applied_epoch, before.undelivered_above):
            self._report_applied(applied)

    def _report_problem(self) -> None:
        """Report what keeps a sidecar that was never ready from it, if that has changed."""
        problem, found = None, self._levels.problems
        if self._inherits and not self._loaded:
            found = fleet_levels(self._supported, self._controller.topic.finalized).problems
        if not self._was_ready:
            if found:
                name, what = next(iter(sorted(found.items())))
                problem = (
                    f"feature {name}: {what}; run a release that supports them, or lower them first: "
                    "brokerside features downgrade"
                )
            elif not (self._loaded or self._was_read) and asyncio.get_running_loop().time() < self._load_until:
                problem = NOT_LOADED
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
                    self._applied.update(levels, found, self._group_levels())
                    self._register()
            except Exception:
                log.exception("features_poller_failed")  # a mistake of ours must not end the task
            applied = self._own.applied_epoch == self._levels.epoch
            try:
                async with asyncio.timeout(HEARTBEAT_INTERVAL if applied else wait):
                    await self._changed.wait()
                wait = APPLY_INTERVAL
            except TimeoutError:
                wait = APPLY_INTERVAL if applied else min(2 * wait, LAST_APPLY_INTERVAL)

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
