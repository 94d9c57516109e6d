"""Asks for the levels of features, and changes those that are finalized (KIP-584).

The other end is a sidecar, or a broker: both answer the same requests, a sidecar with the features of the fleet beside
those of the brokers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from proxy.client.blocking_client import BlockingClient
from proxy.client.errors import UnsupportedRequestError
from proxy.errors import LocalError
from proxy.features.records import MAX_NAME, MAX_UPDATES, FeatureUpdate
from proxy.features.updates import MAX_WAIT_MS, UpdateResult
from proxy.fleet.connection import BrokerUnreachable
from proxy.interceptors.update_features import UPDATE_FEATURES
from proxy.rpc import feature_messages
from proxy.rpc.feature_messages import DESCRIBE_VERSIONS, UPDATE_VERSION, DescribedFeatures

UPDATE_RESPONSE_TIMEOUT = 30.0
"""Seconds until the response to an update is given up; a sidecar answers, or closes the connection, within 25."""

LEVELS = -32_768, 32_767
"""Inclusive: a level is an int16. One below 1 deletes the feature."""


class FeaturesClient(BlockingClient):
    """For one thread; not within a running event loop. Every error is a BrokersideError.

    Beside its own errors, each question raises BrokerUnreachable where nobody answers in time, RequestRefused for a
    login that fails, and PeerError for a response that is none.
    """

    closed_hint = "the listener may want a login"

    def describe(self) -> DescribedFeatures:
        """Return the levels that the other end supports, and those that are finalized.

        Where ``epoch`` is below 0, nothing is known of finalized levels. Raises UnsupportedRequestError for a broker
        before 2.4, which knows no features.
        """
        for version in DESCRIBE_VERSIONS:
            found = feature_messages.decode_described(version, self._call(feature_messages.describe_request(version)))
            if found is not None:
                return found
        raise UnsupportedRequestError("ApiVersions", DESCRIBE_VERSIONS[-1])

    def update(self, updates: Iterable[FeatureUpdate], *, dry_run: bool = False) -> dict[str, UpdateResult]:
        """Ask for new finalized maxima, and return the result of each by feature. Either all change, or none.

        ``dry_run``: only check. A result has an error code of Kafka's: 0 done, 31 not authorized (Alter on the
        cluster), 41 the controller is another one, 95 the update is wrong, 96 it cannot be done now or is not applied
        everywhere yet; its message says more. Raises UnsupportedRequestError where UpdateFeatures has no version 1
        (brokers before 3.3), and LocalError for updates that no request can hold, before anything is sent.
        """
        wanted = _checked(updates)
        first, last = self.describe().apis.get(UPDATE_FEATURES, (0, -1))
        if not first <= UPDATE_VERSION <= last:
            raise UnsupportedRequestError("UpdateFeatures", UPDATE_VERSION)
        request = feature_messages.update_request(wanted, MAX_WAIT_MS, dry_run=dry_run)
        try:
            answer = self._call(request, UPDATE_RESPONSE_TIMEOUT)
        except BrokerUnreachable as error:
            raise BrokerUnreachable(f"{error}; the update may have been made all the same: describe it") from None
        whole, results = feature_messages.decode_updated(answer)
        if whole.error_code:
            return {one.feature: whole for one in wanted}
        return {one.feature: results.get(one.feature, whole) for one in wanted}


def _checked(updates: Iterable[FeatureUpdate]) -> list[FeatureUpdate]:
    wanted = list(updates)
    if not 1 <= len(wanted) <= MAX_UPDATES:
        raise LocalError(f"{len(wanted)} features (allowed: 1 to {MAX_UPDATES})")
    for one in wanted:
        if not 1 <= (size := len(one.feature.encode())) <= MAX_NAME:
            raise LocalError(f"the name of a feature has {size} bytes (allowed: 1 to {MAX_NAME})")
        if not LEVELS[0] <= one.level <= LEVELS[1]:
            raise LocalError(f"{one.feature}: level {one.level} (allowed: up to {LEVELS[1]}; below 1 deletes it)")
        if not -128 <= one.upgrade_type <= 127:
            raise LocalError(f"{one.feature}: upgrade type {one.upgrade_type} (allowed: -128 to 127)")
    name, times = Counter(one.feature for one in wanted).most_common(1)[0]
    if times > 1:
        raise LocalError(f"{name}: is named {times} times (allowed: once)")
    return wanted
