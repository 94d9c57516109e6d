"""The OpenTelemetry observer: its settings, what a collector's response means, and where the cluster's id is from."""

from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from observers import cluster_id as module
from observers.cluster_id import ClusterId
from observers.errors import ObserverError
from observers.http_connection import Url
from observers.opentelemetry import AUDIT_OBSERVER_NAME, OBSERVER_NAME, OpenTelemetryLogsObserver
from observers.otlp_response import MAX_RETRY_AFTER, outcome_of
from observers.otlp_settings import DEFAULTS, OtlpSettings, check_settings
from tests.unit.observers.audit_levels import configs as given_to_observers
from tests.unit.observers.test_dispatch import until


def checked(**settings: Any) -> OtlpSettings:
    return check_settings(settings, shows_headers=False)


@pytest.mark.promise("opentelemetry.md", "The default endpoint is the collector of this host.")
def test_an_endpoint_is_used_as_it_is_and_has_a_default_path() -> None:
    settings = checked()
    assert settings.url == Url(False, "localhost", 4318, "/v1/logs")
    assert (settings.timeout, settings.compresses, settings.headers) == (10.0, False, ())
    assert settings.shared["spool.path"] == ""
    page = (Path(__file__).parents[3] / "docs" / "opentelemetry.md").read_text()
    assert [name for name in DEFAULTS if f"| `{name}` |" not in page] == [], "every setting is documented"
    for text, url, authority in (
        ("http://collector", Url(False, "collector", 80, "/v1/logs"), "collector"),
        ("https://collector/", Url(True, "collector", 443, "/v1/logs"), "collector"),
        ("https://collector:4318/otlp/logs", Url(True, "collector", 4318, "/otlp/logs"), "collector:4318"),
        ("http://[::1]:4318/v1/logs?a=b", Url(False, "::1", 4318, "/v1/logs?a=b"), "[::1]:4318"),
    ):
        assert checked(endpoint=text).url == url, text
        assert url.authority == authority, text


def test_lists_have_the_marks_of_otel_and_kafka() -> None:
    settings = checked(
        **{
            "headers": "Authorization=Bearer%20a%3Db, x-tenant = 7",
            "resource.attributes": "service.name=kafka-audit,deployment.environment.name=a%2Cb",
            "exclude.topics": "a, b,",
            "exclude.principals": "User:CN=x,O=y;User:monitoring",
        }
    )
    assert settings.headers == (("authorization", "Bearer a=b"), ("x-tenant", "7"))
    assert settings.resource_attributes == {"service.name": "kafka-audit", "deployment.environment.name": "a,b"}
    assert settings.shared["exclude.topics"] == ("a", "b")
    assert settings.shared["exclude.principals"] == ("User:CN=x,O=y", "User:monitoring")


def test_a_wrong_one_is_named_with_what_is_allowed() -> None:
    for settings, says in (
        ({"endpiont": "x"}, r"endpiont: is no setting \(allowed: endpoint, headers, "),
        ({"endpoint": "collector:4318"}, r"endpoint: 'collector:4318' \(allowed: http://HOST"),
        ({"endpoint": "grpc://collector"}, r"endpoint: 'grpc://collector'"),
        ({"endpoint": "http://a:99999"}, r"endpoint: is not a URL"),
        ({"timeout.ms": 1}, r"timeout.ms: 1 \(allowed: 100–600000\)"),
        ({"compression": "zstd"}, r"compression: 'zstd' \(allowed: none or gzip\)"),
        ({"spool.path": "spool"}, r"spool.path: 'spool' \(allowed: an absolute path\)"),
        ({"exclude.topics": "a b"}, r"exclude.topics: 'a b' \(allowed: topics, separated by commas\)"),
        ({"exclude.principals": "alice"}, r"exclude.principals: 'alice' \(allowed: principals such as User:alice"),
        ({"resource.attributes": "a"}, r"resource.attributes: 'a' \(allowed: name=value"),
        ({"resource.attributes": "a=1,a=2"}, r"resource.attributes: 'a=2' \(allowed: each name once\)"),
        ({"resource.attributes": "service.instance.id=1"}, r"resource.attributes: .* \(allowed: none of service.inst"),
        ({"certificate": "/a.pem"}, r"certificate: '/a.pem', but endpoint is not https"),
        ({"endpoint": "https://a", "client.key": "/a"}, r"client.certificate, client.key: one without the other"),
        ({"endpoint": "https://a", "certificate": "/no/such"}, r"certificate '/no/such': cannot be used: .*No such"),
    ):
        with pytest.raises(ObserverError, match=says):
            checked(**settings)


@pytest.mark.promise("opentelemetry.md", "Headers stand only in a file, and no error shows one.")
def test_no_error_shows_a_secret() -> None:
    wrong = ("c4n4ry", "host=c4n4ry", "a b=c4n4ry", "a=c4n4ry%0a", "a=c4n4ry,a=c4n4ry", "a=c4n4ry%ff,b")
    for settings, says in (
        *(({"headers": text}, "headers: entry") for text in wrong),
        ({"endpoint": "http://user:c4n4ry@collector"}, "holds a user or a password"),
    ):
        with pytest.raises(ObserverError, match=says) as raised:
            checked(**settings)
        assert "c4n4ry" not in str(raised.value), settings
    with pytest.raises(ObserverError, match=r"headers: must not stand in the configuration \(allowed: {file: PATH}\)"):
        OpenTelemetryLogsObserver().configure(configs({"headers": "a=c4n4ry"}))


def configs(settings: dict[str, Any], *, audit: str | None = None, names: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        **given_to_observers("boot", topic="audit", **{"spool.path": audit, "spool.max.bytes": 1 << 30}),
        "dry.run": True,
        "settings": settings,
        "config": {"observers": {OBSERVER_NAME: settings}, "observer.class.names": names},
    }


@pytest.mark.promise("opentelemetry.md", "The spool of these logs cannot be that of the audit topic.")
def test_two_observers_do_not_share_a_spool(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "link").symlink_to("spool")
    both = (AUDIT_OBSERVER_NAME, OBSERVER_NAME)
    own = {"spool.path": str(tmp_path / "link")}
    with pytest.raises(ObserverError, match=r"spool.path: .* is audit.spool.path as well"):
        OpenTelemetryLogsObserver().configure(configs(own, audit=str(tmp_path / "spool"), names=both))
    OpenTelemetryLogsObserver().configure(configs(own, audit=str(tmp_path / "other"), names=both))
    OpenTelemetryLogsObserver().configure(configs(own, audit=str(tmp_path / "spool"), names=both[1:]))


NOW = 1_795_260_000.0


@pytest.mark.promise("opentelemetry.md", "A collector's Retry-After is waited for, up to 5 minutes.")
def test_the_pause_that_a_collector_asks_for_is_bounded() -> None:
    for text, seconds in (
        ("", 0),
        ("7", 7),
        ("0", 0),
        ("999999999", MAX_RETRY_AFTER),
        ("9" * 400, 0),
        ("-7", 0),
        ("soon", 0),
        ("nan", 0),
        (formatdate(NOW + 42, usegmt=True), 42),
        (formatdate(NOW - 42, usegmt=True), 0),
        ("Tue, 99 Nov 2026 00:00:00 GMT", 0),
        ("Tue, 24 Nov 99999999999999 00:00:00 GMT", 0),
    ):
        outcome = outcome_of(503, {"retry-after": text}, b"", NOW)
        assert (outcome.reason, outcome.retry_after) == ("http_503", seconds), text


class Cluster:
    """In place of a ``KafkaAdmin``: answers from the third time on."""

    asked = 0

    def fetch_cluster_id(self) -> str:
        self.asked += 1
        if self.asked < 3:
            raise ConnectionError
        return "ThK9ZFduS0ONy_eg3SRv7w"


@pytest.mark.promise("opentelemetry.md", "The cluster's id is missing until the cluster was reached.")
def test_it_is_empty_until_the_cluster_answers_and_asked_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_RETRY_DELAY", 0.01)
    cluster: Any = Cluster()
    found = ClusterId(cluster)
    assert found.value == ""
    with capture_logs() as logged:
        found.start()
        until(lambda: found.value == "ThK9ZFduS0ONy_eg3SRv7w")
    assert cluster.asked == 3
    assert [one["error"] for one in logged] == ["ConnectionError"] * 2
    unasked: Any = Cluster()
    found = ClusterId(unasked)
    found.close()
    found._run()
    assert unasked.asked == 0
