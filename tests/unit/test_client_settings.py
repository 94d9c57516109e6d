"""Properties files of Kafka's Java clients, as settings of the sidecar's own connections."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.commands.client_settings import client_settings
from proxy.errors import LocalError
from proxy.fleet.security import Security
from tests.cases import each

LOGIN = 'org.apache.kafka.common.security.%s required username="al\\\\"ice" password="c4n4ry=;";'


def settings_of(folder: Path, *lines: str) -> dict[str, str]:
    path = folder / "client.properties"
    path.write_text("\n".join(lines) + "\n")
    return client_settings(path)


@pytest.mark.promise("commands.md", "Commands log in with the properties file of Kafka's tools.")
@each(("mechanism", "module"), [("PLAIN", "plain.PlainLoginModule"), ("SCRAM-SHA-512", "scram.ScramLoginModule")])
def test_a_login_of_java_s(tmp_path: Path, mechanism: str, module: str) -> None:
    lines = ["security.protocol=SASL_PLAINTEXT", f"sasl.mechanism={mechanism}", f"sasl.jaas.config={LOGIN % module}"]
    security = Security.from_settings(settings_of(tmp_path, *lines))
    assert (security.mechanism, security.user, security.password) == (mechanism, 'al"ice', "c4n4ry=;")


def test_stores_in_pem(tmp_path: Path) -> None:
    found = settings_of(
        tmp_path,
        "security.protocol=SSL",
        "ssl.truststore.type=PEM",
        "ssl.truststore.location=/etc/kafka/ca.pem",
        "ssl.keystore.type=PEM",
        "ssl.keystore.location=/etc/kafka/client.pem",
        "ssl.endpoint.identification.algorithm=",
    )
    assert found == {
        "security.protocol": "SSL",
        "ssl.ca.location": "/etc/kafka/ca.pem",
        "ssl.certificate.location": "/etc/kafka/client.pem",
        "ssl.key.location": "/etc/kafka/client.pem",
        "ssl.endpoint.identification.algorithm": "none",
    }


def test_settings_of_librdkafka_stay(tmp_path: Path) -> None:
    lines = ["security.protocol=sasl_ssl", "sasl.username=alice", "sasl.password=secret", "ssl.ca.location=/ca.pem"]
    assert settings_of(tmp_path, *lines) == dict(line.split("=") for line in lines)


@pytest.mark.promise("commands.md", "A property without a counterpart is named, and its value is not shown.")
@each(
    ("line", "said"),
    [
        (
            "ssl.truststore.location=/trust.jks",
            "ssl.truststore.location is not supported (allowed: with ssl.truststore.",
        ),
        ("ssl.keystore.location=/key.p12\nssl.keystore.type=PKCS12", "ssl.keystore.location is not supported"),
        (f"sasl.jaas.config={LOGIN % 'oauthbearer.OAuthBearerLoginModule'}", "allowed: PlainLoginModule, ScramLogin"),
        ("sasl.jaas.config=c4n4ry", "sasl.jaas.config is not supported"),
        ('sasl.jaas.config=x.PlainLoginModule required username="c4n4ry";', "needs username and password"),
    ],
)
def test_what_has_no_counterpart_is_named_without_its_value(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(LocalError) as raised:
        settings_of(tmp_path, line)
    assert said in str(raised.value)
    assert "c4n4ry" not in str(raised.value)
