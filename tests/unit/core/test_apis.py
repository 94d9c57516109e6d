import pytest

from proxy.core import apis
from tests.tools.generate_apis import versions


def test_every_assigned_key_is_there() -> None:
    assert sorted(apis.APIS) == list(range(95))


@pytest.mark.parametrize(
    ("key", "name", "low", "high", "flexible_since"),
    [
        (0, "Produce", 0, 13, 9),
        (1, "Fetch", 0, 18, 12),
        (3, "Metadata", 0, 13, 9),
        (6, "UpdateMetadata", 0, 8, 6),
        (17, "SaslHandshake", 0, 1, None),
        (18, "ApiVersions", 0, 5, 3),
        (60, "DescribeCluster", 0, 2, 0),
        (94, "UnregisterController", 0, 0, 0),
    ],
)
def test_rows(key: int, name: str, low: int, high: int, flexible_since: int | None) -> None:
    api = apis.APIS[key]
    assert (api.name, api.min_version, api.max_version, api.flexible_since) == (name, low, high, flexible_since)


def test_names() -> None:
    assert apis.api_name(0) == "Produce"
    assert apis.api_name(10000) == "ApiKey(10000)"
    assert apis.api_name(-1) == "ApiKey(-1)"


def test_known_versions() -> None:
    assert apis.is_known(0, 0)
    assert apis.is_known(0, 13)
    assert not apis.is_known(0, 14)
    assert not apis.is_known(0, -1)
    assert not apis.is_known(95, 0)


def test_flexible_headers() -> None:
    assert not apis.request_is_flexible(0, 8)
    assert apis.request_is_flexible(0, 9)
    assert apis.request_is_flexible(0, 99)
    assert not apis.request_is_flexible(17, 1)
    assert not apis.request_is_flexible(4711, 3)
    assert apis.request_is_flexible(18, 3)


def test_an_api_versions_response_never_has_a_flexible_header() -> None:
    assert not apis.response_header_is_flexible(18, 4)
    assert apis.response_header_is_flexible(1, 12)
    assert not apis.response_header_is_flexible(1, 11)


def test_version_ranges_are_read() -> None:
    assert versions("3-13") == (3, 13)
    assert versions("0") == (0, 0)
