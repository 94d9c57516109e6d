"""An update of finalized levels: what a client asks for, whether it is allowed, and its answer.

Source: KIP-584 and ``UpdateFeaturesRequest.json``; error codes as Kafka's ``FeatureControlManager`` uses them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime

from msgspec import Struct

from proxy.features.catalog import PREFIX, SUPPORTED, UNSAFE_TO_LEAVE, LevelRange
from proxy.features.participants import Participant
from proxy.features.records import (
    MAX_NAME,
    MAX_UPDATES,
    SAFE_DOWNGRADE,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    FeatureUpdate,
    Finalized,
    FinalizedRange,
)

NONE = 0
CLUSTER_AUTHORIZATION_FAILED = 31
NOT_CONTROLLER = 41
INVALID_UPDATE_VERSION = 95
"""The update is wrong: to repeat it is of no use."""
FEATURE_UPDATE_FAILED = 96
"""The update cannot be done now, or is not applied everywhere yet."""

MAX_WAIT_MS = 20_000
"""Milliseconds that an update takes at most. Java's clients give up after 30 seconds."""

MAX_NAMED = 10
"""Participants or features that one message names."""

MAX_TAGGED_FIELDS = 2 * MAX_UPDATES
"""Tagged fields in one request. No version has defined any so far."""

MAX_TEXT_SHOWN = 64
"""Characters of a feature's name, as a client has sent it, or of a release that a message repeats."""

LAST_MS = 253_402_300_799_000
"""The last second that can be shown, in milliseconds since 1970: a record's time may be anything."""

FAILED = "The update failed for all features since the following feature had an error: FEATURE_UPDATES_FAILED: "
"""Begins the message of an update that is wrong: the first sentence is Kafka's, the name that of KIP-584."""

IN_PROGRESS = "FEATURE_UPDATE_IN_PROGRESS: "
"""Begins the message of an update that came while another one was under way: the name is that of KIP-584."""


class UpdateRequest(Struct, frozen=True, array_like=True):
    """One UpdateFeatures request. ``principal``, ``client_ip`` and ``listener``: of the client, for the log."""

    api_version: int
    timeout_ms: int
    updates: tuple[FeatureUpdate, ...]
    validate_only: bool = False
    principal: str = ""
    client_ip: str = ""
    listener: str = ""


class UpdateResult(Struct, frozen=True, array_like=True):
    """The outcome for the client: an error code of Kafka's and, if it is not 0, a message."""

    error_code: int
    message: str | None = None


UpdateFeatures = Callable[[UpdateRequest], Awaitable[UpdateResult]]
"""Asks the controller for an update, and waits for its outcome. Raises nothing."""


MAY_BE_MADE = "; the update may still be made: brokerside features describe shows the levels"
"""Ends the message where the outcome is not known: the proposal may be in the topic, and be answered later."""

ENDING = UpdateResult(FEATURE_UPDATE_FAILED, "this sidecar is ending; ask another one")
"""Before anything was proposed."""

ENDED = UpdateResult(FEATURE_UPDATE_FAILED, f"this sidecar is ending{MAY_BE_MADE}")
"""After it was proposed."""


class UpdateRefused(Exception):
    """The update is wrong. Its text is the message for the client, with the code ``INVALID_UPDATE_VERSION``."""


def wait_ms(timeout_ms: int) -> int:
    """Return how long an update may take, in milliseconds. ``timeout_ms``: of the client's request."""
    return min(max(timeout_ms, 0), MAX_WAIT_MS)


def check(
    updates: Sequence[FeatureUpdate],
    finalized: Finalized,
    participants: Sequence[Participant],
    *,
    api_version: int = 1,
    supported: Mapping[str, LevelRange] = SUPPORTED,
    unsafe_to_leave: Mapping[str, int] = UNSAFE_TO_LEAVE,
) -> dict[str, FinalizedRange]:
    """Return the finalized levels after all updates; raises ``UpdateRefused`` at the first that is wrong.

    ``finalized``: the levels before. ``api_version``: of the client's request; in version 0 an update to the level that
    is finalized already is wrong. ``supported``: by the controller, with the unsafe downgrades of its release.
    """
    names = [update.feature for update in updates]
    check_names(names)
    check_count(len(names))
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise _refused(twice[0], "is named twice")
    target = dict(finalized)
    for update in updates:
        name, existing = update.feature, finalized.get(update.feature)
        if name not in supported and existing is None:
            raise _refused(name, f"no such feature (there are: {listed(sorted({*supported, *finalized}))})")
        if update.level < 1:
            _check_deletion(update, existing)
            del target[name]
        elif _changes(update, existing, api_version):
            _check_support(update, existing, participants)
            target[name] = FinalizedRange(existing.min_version_level if existing else 1, update.level)
        if existing is not None:
            _check_safety(update, existing, unsafe_to_leave)
    return target


def check_names(names: Iterable[str]) -> None:
    """Raise ``UpdateRefused`` if one of ``names`` is a feature of brokers."""
    if foreign := [name for name in names if not name.startswith(PREFIX)]:
        text = "features of brokers and of sidecars cannot be updated in one request: "
        raise UpdateRefused(FAILED + text + listed(map(_shown, foreign)))


def check_count(count: int) -> None:
    """Raise ``UpdateRefused`` for a request of ``count`` features if that are too many."""
    if count > MAX_UPDATES:
        raise UpdateRefused(f"{FAILED}{count} features in one request (allowed: {MAX_UPDATES})")


def check_name_size(size: int) -> None:
    """Raise ``UpdateRefused`` for a name of ``size`` bytes if that is too long."""
    if size > MAX_NAME:
        raise UpdateRefused(f"{FAILED}the name of a feature has {size} bytes (allowed: {MAX_NAME})")


def check_tagged_fields(count: int) -> None:
    """Raise ``UpdateRefused`` for a request of ``count`` tagged fields if that are too many."""
    if count > MAX_TAGGED_FIELDS:
        raise UpdateRefused(f"{FAILED}{count} tagged fields in one request (allowed: {MAX_TAGGED_FIELDS})")


def _check_deletion(update: FeatureUpdate, existing: FinalizedRange | None) -> None:
    _check_type(update)
    if update.upgrade_type == UPGRADE:
        raise _refused(
            update.feature,
            f"level {update.level} deletes it: this needs a safe or unsafe downgrade (upgrade type 2 or 3)",
        )
    if existing is None:
        raise _refused(update.feature, "is not finalized, so that there is nothing to delete")


def _changes(update: FeatureUpdate, existing: FinalizedRange | None, api_version: int) -> bool:
    """Check a level above 0 against the one that is finalized; return False if it is the same, and this is allowed."""
    name, level = update.feature, update.level
    _check_type(update)
    if existing is None:
        if update.upgrade_type != UPGRADE:
            raise _refused(name, f"is not finalized, so that there is nothing to downgrade to {level}")
        return True
    at = existing.max_version_level
    if update.upgrade_type != UPGRADE and level >= at:
        text = f"a downgrade to {level} can not be greater than existing {at}"
        raise _refused(name, text if level > at else f"a downgrade to {level} changes nothing: is at {at} already")
    if level == at:
        if api_version == 0:
            raise _refused(name, f"is at {at} already")
        return False
    if level < at and update.upgrade_type == UPGRADE:
        raise _refused(
            name, f"is at {at}; to go down to {level} ask for a safe or unsafe downgrade (upgrade type 2 or 3)"
        )
    if level < existing.min_version_level:
        raise _refused(name, f"level {level} is deprecated (minimum {existing.min_version_level})")
    return True


def _check_type(update: FeatureUpdate) -> None:
    if update.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise _refused(update.feature, f"upgrade type {update.upgrade_type} (allowed: 1, 2, 3)")


def _check_safety(update: FeatureUpdate, existing: FinalizedRange, unsafe_to_leave: Mapping[str, int]) -> None:
    bound = unsafe_to_leave.get(update.feature)
    if (
        bound is not None
        and update.level < bound <= existing.max_version_level
        and update.upgrade_type == SAFE_DOWNGRADE
    ):
        raise _refused(
            update.feature,
            f"what needs level {bound} stops or is lost at level {max(update.level, 0)}; "
            "an unsafe downgrade (upgrade type 3) accepts that",
        )


def _check_support(update: FeatureUpdate, existing: FinalizedRange | None, participants: Sequence[Participant]) -> None:
    """Check that all participants support the new level; for a downgrade not those sidecars that do not run."""
    name, level = update.feature, update.level
    is_raise = existing is None or level > existing.max_version_level
    asked = [one for one in participants if is_raise or one.running or one.broker_id is None]
    if lacking := _lacking(name, level, asked):
        raise _refused(name, f"{lacking}; asked: {level}")
    stopped = [one for one in asked if not one.running and one.broker_id is not None]
    if stopped:
        who = listed(one.label for one in stopped)
        do, them = ("does", "it") if len(stopped) == 1 else ("do", "them")
        commands = listed(f"brokerside features forget {one.name}" for one in stopped)
        raise _refused(name, f"{who} {do} not run and cannot be asked; start {them}, or {commands}")


def raised_minimums(
    finalized: Finalized, min_levels: Mapping[str, int], participants: Sequence[Participant]
) -> tuple[dict[str, FinalizedRange], str | None]:
    """Return the levels with the minimums of a release, ``min_levels``, as far as all participants support them.

    Also returns which participants prevent a minimum, for people; None if none does.
    """
    target, blocked = dict(finalized), None
    for name, low in min_levels.items():
        levels = target.get(name)
        if levels is None or not levels.min_version_level < low <= levels.max_version_level:
            continue
        if lacking := _lacking(name, low, participants):
            blocked = f"{name}: {lacking}; minimum of this release: {low}"
        else:
            target[name] = FinalizedRange(low, levels.max_version_level)
    return target, blocked


def common_levels(supported: Iterable[str], participants: Sequence[Participant]) -> dict[str, FinalizedRange]:
    """Return the levels that a new fleet begins with: of each feature the highest that all participants support.

    ``supported``: names of the controller's features. One that a participant lacks is left out.
    """
    found = {}
    for name in supported:
        ranges = [one.supported.get(name) for one in participants if one.takes_part(name)]
        known = [one for one in ranges if one is not None]
        if known and len(known) == len(ranges):
            level = min(one.max for one in known)
            if level >= max(one.min for one in known):
                found[name] = FinalizedRange(1, level)
    return found


def _refused(name: str, text: str) -> UpdateRefused:
    return UpdateRefused(f"{FAILED}{_shown(name)}: {text}")


def _shown(text: str) -> str:
    """Return a text of somebody else's for a message."""
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= MAX_TEXT_SHOWN else f"{text[:MAX_TEXT_SHOWN]}…"


def _lacking(name: str, level: int, participants: Iterable[Participant]) -> str:
    """Return which participants do not support a level, for people; empty if all do."""
    return listed(
        _support(one, name) for one in participants if one.takes_part(name) and level not in one.supported.get(name, ())
    )


def _support(one: Participant, name: str) -> str:
    """Return what a participant supports of a feature, for people."""
    levels = one.supported.get(name)
    release = f" ({_shown(one.release)})" if one.release else ""
    text = f"{one.label}{release} " + ("does not support it" if levels is None else f"supports {levels}")
    if one.running:
        return text
    since = datetime.fromtimestamp(min(max(one.last_seen_ms, 0), LAST_MS) / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{text} (does not run since {since}; brokerside features forget {one.name})"


def listed(texts: Iterable[str]) -> str:
    """Return texts with commas between, at most ``MAX_NAMED`` of them."""
    everything = list(texts)
    more = len(everything) - MAX_NAMED
    return ", ".join(everything[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
