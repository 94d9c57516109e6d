"""The commands about feature levels of the fleet (KIP-584)."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.commands.arguments import (
    FurtherWords,
    add_api_key,
    add_bootstrap_servers,
    add_config,
    add_kafka_config,
    add_listener,
    add_output,
    bounded,
    command,
    endpoint,
    group,
)
from proxy.commands.hmac_option import REGISTRY_KEYS, add_hmac_keys, hmac_keys
from proxy.commands.output import encode_value
from proxy.features.catalog import MAX_LEVEL, PREFIX, SUPPORTED

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable, Mapping

    from proxy.client import DescribedFeatures, FeatureUpdate
    from proxy.commands.arguments import Commands
    from proxy.config import Endpoint
    from proxy.features.catalog import LevelRange

DOES_NOT_FIT = 3
"""Exit code of ``check`` for a release that does not support the finalized levels."""

LOGIN_SETTINGS = ("security.protocol", "sasl.", "ssl.")
"""How settings of a login and of TLS begin; others are of Java's clients, and librdkafka would refuse them."""

_FEATURE = re.compile(rf"{re.escape(PREFIX)}[a-z]+(\.[a-z]+)*")
_PARTICIPANT = re.compile(r"sidecar/(0|[1-9][0-9]{0,9})|reader/[A-Za-z0-9._-]{1,128}")


def add(commands: Commands) -> None:
    """Put them on the command line."""
    features = group(commands, "features", "Feature levels of the fleet: show, raise and lower them.")
    made = command(features, "describe", describe)
    add_listener(made)
    add_api_key(made)
    add_output(made, ("table", "json"))
    levels = FurtherWords("levels", "NAME=LEVEL", "Then features with the levels that they get.", _levels)
    names = FurtherWords("names", "NAME", "Then the features to delete.", _deletions)
    made = command(features, "upgrade", upgrade)
    add_listener(made, levels)
    _add_dry_run(made)
    made = command(features, "upgrade-all", upgrade_all)
    add_listener(made)
    _add_dry_run(made)
    made = command(features, "downgrade", downgrade)
    add_listener(made, levels)
    _add_dry_run(made)
    _add_unsafe(made)
    made = command(features, "downgrade-all", downgrade_all)
    add_listener(made)
    _add_dry_run(made)
    made = command(features, "disable", disable)
    add_listener(made, names)
    _add_dry_run(made)
    _add_unsafe(made)
    made = command(features, "check", check)
    add_config(made)
    made = command(features, "forget", forget_participant)
    text = "What does not run any more: sidecar/ID or reader/NAME."
    made.add_argument("participant", type=_participant, metavar="PARTICIPANT", help=text)
    add_bootstrap_servers(made, type=_servers, required=True, help="The INTERNAL listeners.")
    add_kafka_config(made, "Properties file with TLS and SASL: Kafka's settings, or librdkafka's.")
    add_hmac_keys(made, REGISTRY_KEYS, "The file of registry.hmac.keys.file, where the sidecars have one.")


def _add_dry_run(made: ArgumentParser) -> None:
    made.add_argument("--dry-run", action="store_true", help="Only check whether it is possible.")


def _add_unsafe(made: ArgumentParser) -> None:
    text = "Also below a level that something in use needs."
    made.add_argument("--unsafe", action="store_true", help=text)


def describe(address: Endpoint, kafka_config: Path | None, api_key: int, output: str) -> None:
    """Show the supported and the finalized levels of each feature, and what each sidecar supports."""
    from proxy.client import BrokerMetadataClient, FeaturesClient
    from proxy.commands.client_settings import client_settings
    from proxy.commands.feature_lines import report_lines, report_of

    settings = client_settings(kafka_config)
    with FeaturesClient(address, settings) as client:
        found = client.describe()
    own = brokers = None
    if api_key in found.apis:
        with BrokerMetadataClient(address, settings, api_key=api_key) as metadata:
            own, brokers = metadata.this_broker(), metadata.brokers()
    report = report_of(found, own, brokers)
    if output == "json":
        print(encode_value(report, output))
        return
    print("\n".join(report_lines(report)))
    if brokers is None:
        print(f"brokerside: {address}: no sidecar answers BrokerMetadata (api key {api_key})", file=sys.stderr)


def upgrade(address: Endpoint, kafka_config: Path | None, levels: dict[str, int], dry_run: bool) -> int:
    """Raise the finalized maximum of features: all that are named, or none."""
    from proxy.features.records import UPGRADE

    return _update(address, kafka_config, dry_run, lambda found: _updates(levels, UPGRADE))


def upgrade_all(address: Endpoint, kafka_config: Path | None, dry_run: bool) -> int:
    """Raise all features of this release to its maximum. Nothing is lowered or deleted."""
    from proxy.commands.feature_lines import raise_all

    return _update(address, kafka_config, dry_run, lambda found: raise_all(_of_fleet(address, found)))


def downgrade(address: Endpoint, kafka_config: Path | None, levels: dict[str, int], dry_run: bool, unsafe: bool) -> int:
    """Lower the finalized maximum of features: all that are named, or none."""
    from proxy.features.records import SAFE_DOWNGRADE, UNSAFE_DOWNGRADE

    how = UNSAFE_DOWNGRADE if unsafe else SAFE_DOWNGRADE
    return _update(address, kafka_config, dry_run, lambda found: _updates(levels, how))


def downgrade_all(address: Endpoint, kafka_config: Path | None, dry_run: bool) -> int:
    """Lower all features to the maximum of this release, and delete those that it does not know. None is added."""
    from proxy.commands.feature_lines import lower_all
    from proxy.errors import LocalError

    def lowered(found: DescribedFeatures) -> list[FeatureUpdate]:
        finalized = _of_fleet(address, found)
        if not finalized:
            raise LocalError(f"{address}: the sidecar there does not know of any finalized level; ask another one")
        return lower_all(finalized)

    return _update(address, kafka_config, dry_run, lowered)


def disable(address: Endpoint, kafka_config: Path | None, names: dict[str, int], dry_run: bool, unsafe: bool) -> int:
    """Delete the finalized levels of features: all that are named, or none."""
    return downgrade(address, kafka_config, names, dry_run, unsafe)


def _updates(levels: Mapping[str, int], how: int) -> list[FeatureUpdate]:
    from proxy.client import FeatureUpdate

    return [FeatureUpdate(name, level, how) for name, level in levels.items()]


def _of_fleet(address: Endpoint, found: DescribedFeatures) -> dict[str, LevelRange]:
    """Return the finalized levels of the fleet. Raises LocalError where there is none: an update of nothing would look
    like success."""
    from proxy.errors import LocalError

    if not any(name.startswith(PREFIX) for name in found.supported):
        raise LocalError(
            f"{address}: no features of a fleet there: no sidecar, or one without internal.bootstrap.servers or with "
            "features.enabled: false"
        )
    return {name: levels for name, levels in found.finalized.items() if name.startswith(PREFIX)}


def _update(
    address: Endpoint,
    kafka_config: Path | None,
    dry_run: bool,
    choose: Callable[[DescribedFeatures], list[FeatureUpdate]],
) -> int:
    """Ask for the updates that ``choose`` makes of what is there, and print their results."""
    from proxy.client import FeaturesClient
    from proxy.commands.client_settings import client_settings
    from proxy.commands.feature_lines import update_lines

    with FeaturesClient(address, client_settings(kafka_config)) as client:
        found = client.describe()
        updates = choose(found)
        if not updates:
            print("nothing to do")
            return 0
        results = client.update(updates, dry_run=dry_run)
    print("\n".join(update_lines(updates, found.finalized, results)))
    failed = sum(bool(result.error_code) for result in results.values())
    if failed:
        print(f"brokerside: {failed} of {len(updates)} updates failed", file=sys.stderr)
        return 1
    if dry_run:
        print("dry run: nothing was changed")
    return 0


def check(config: Path) -> int:
    """Check whether this release supports the finalized levels: exit code 0 if it does, 3 if it does not."""
    from proxy.config import load
    from proxy.config.hmac_keys import FEATURES, authenticator
    from proxy.errors import LocalError
    from proxy.features.levels import fleet_levels
    from proxy.fleet.topic_commands import read_features

    loaded = load(config)
    if loaded.features_disabled is not None:
        print(f"{config}: ok, feature levels are disabled: {loaded.features_disabled}")
        return 0
    signer = authenticator(FEATURES, loaded.registry.hmac_keys_file)
    state = read_features(loaded.internal_client_settings(), signer)
    if state.later_layout:
        raise LocalError(f"{config}: a later release has finalized the levels, and this one cannot read its record")
    levels = fleet_levels(SUPPORTED, state.finalized if state.present else None)
    for name, problem in levels.problems.items():
        print(f"brokerside: {config}: {name}: {problem}", file=sys.stderr)
    if levels.problems:
        return DOES_NOT_FIT
    if levels.finalized:
        print(f"{config}: ok, this release supports the finalized levels of epoch {levels.epoch}")
    else:
        print(f"{config}: ok, nothing is finalized yet")
    return 0


def forget_participant(
    participant: str, bootstrap_servers: str, kafka_config: Path | None, registry_hmac_keys: Path | None
) -> None:
    """Delete a sidecar or a reader that is gone from the registry: it no longer has to agree on levels."""
    from proxy.commands.client_settings import client_settings
    from proxy.config.hmac_keys import REGISTRY
    from proxy.core.authentication import Authenticator
    from proxy.fleet.topic_commands import forget

    keys = hmac_keys(REGISTRY_KEYS, registry_hmac_keys)
    settings = {key: value for key, value in client_settings(kafka_config).items() if key.startswith(LOGIN_SETTINGS)}
    settings["bootstrap.servers"] = bootstrap_servers
    forget(participant, settings, Authenticator(REGISTRY, keys) if keys else None)
    print(f"{participant} was removed from the registry")


def _levels(words: list[str]) -> dict[str, int]:
    levels: dict[str, int] = {}
    for word in words:
        name, equals, level = word.partition("=")
        if not name or not equals:
            raise ArgumentTypeError(f"{word!r}: allowed is NAME=LEVEL")
        try:
            number = bounded(level, (1, MAX_LEVEL), f"levels from 1 to {MAX_LEVEL}")
        except ArgumentTypeError as error:
            raise ArgumentTypeError(f"{name!r}: {error}") from None
        _put(levels, name, number)
    return levels


def _deletions(words: list[str]) -> dict[str, int]:
    levels: dict[str, int] = {}
    for name in words:
        _put(levels, name, 0)
    return levels


def _put(levels: dict[str, int], name: str, level: int) -> None:
    if not _FEATURE.fullmatch(name):
        known = ", ".join(SUPPORTED)
        raise ArgumentTypeError(f"{name!r}: allowed are features of the fleet, {PREFIX}NAME; this release has {known}")
    if name in levels:
        raise ArgumentTypeError(f"{name}: is named twice (allowed: once)")
    levels[name] = level


def _servers(text: str) -> str:
    return ",".join(str(endpoint(one)) for one in text.split(","))


def _participant(text: str) -> str:
    if not _PARTICIPANT.fullmatch(text):
        allowed = "sidecar/ID, and reader/NAME of up to 128 letters, digits, dots, underscores and hyphens"
        raise ArgumentTypeError(f"{text!r}: allowed are {allowed}")
    return text
