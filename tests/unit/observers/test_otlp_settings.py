"""Settings of the OpenTelemetry observer: what each means, and what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from observers.errors import ObserverError
from observers.http_connection import Url
from observers.opentelemetry import AUDIT_OBSERVER_NAME, OBSERVER_NAME, OpenTelemetryLogsObserver
from observers.otlp_settings import DEFAULTS, OtlpSettings, check_settings
from observers.topic_names import TopicNames


def checked(**settings: Any) -> OtlpSettings:
    return check_settings(settings, shows_headers=False)


@pytest.mark.promise("opentelemetry.md", "The default endpoint is the collector of this host.")
def test_an_endpoint_is_used_as_it_is_and_has_a_default_path() -> None:
    settings = checked()
    assert settings.url == Url(False, "localhost", 4318, "/v1/logs")
    assert (settings.timeout, settings.compresses, settings.headers) == (10.0, False, ())
    assert settings.shared["spool.path"] == ""
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
        ({"endpoint": 4318}, r"endpoint: 4318 \(allowed: text\)"),
        ({"endpoint": "collector:4318"}, r"endpoint: 'collector:4318' \(allowed: http://HOST"),
        ({"endpoint": "grpc://collector"}, r"endpoint: 'grpc://collector'"),
        ({"endpoint": "http://"}, r"endpoint: 'http://'"),
        ({"endpoint": "http://a b"}, r"endpoint: 'http://a b'"),
        ({"endpoint": "http://a:99999"}, r"endpoint: is not a URL"),
        ({"endpoint": "http://a/#x"}, r"endpoint: 'http://a/#x'"),
        ({"endpoint": "http://a/ü"}, r"endpoint: "),
        ({"timeout.ms": 1}, r"timeout.ms: 1 \(allowed: 100–600000\)"),
        ({"timeout.ms": "1000"}, r"timeout.ms: '1000' \(allowed: "),
        ({"timeout.ms": True}, r"timeout.ms: True"),
        ({"compression": "zstd"}, r"compression: 'zstd' \(allowed: none or gzip\)"),
        ({"mode": "both"}, r"mode: 'both' \(allowed: event or rollup\)"),
        ({"spool.path": "spool"}, r"spool.path: 'spool' \(allowed: an absolute path\)"),
        ({"spool.max.bytes": 1}, r"spool.max.bytes: 1 \(allowed: "),
        ({"exclude.topics": "a b"}, r"exclude.topics: 'a b' \(allowed: topics, separated by commas\)"),
        ({"exclude.principals": "alice"}, r"exclude.principals: 'alice' \(allowed: principals such as User:alice"),
        ({"resource.attributes": "a"}, r"resource.attributes: 'a' \(allowed: name=value"),
        ({"resource.attributes": "a=1,a=2"}, r"resource.attributes: 'a=2' \(allowed: each name once\)"),
        ({"resource.attributes": "service.instance.id=1"}, r"resource.attributes: .* \(allowed: none of service.inst"),
        ({"resource.attributes": "brokerside.broker_id=1"}, r"resource.attributes: .* \(allowed: none of"),
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
        "broker.id": 1,
        "boot.id": "boot",
        "sidecar.version": "0",
        "internal": {"bootstrap.servers": "127.0.0.1:1"},
        "topic.names": TopicNames(dict),
        "audit": {"topic": "audit", "spool.path": audit, "spool.max.bytes": 1 << 30},
        "api.names": {},
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


def test_every_setting_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "opentelemetry.md").read_text()
    assert [name for name in DEFAULTS if f"| `{name}` |" not in page] == []
