"""A broker with Kafka's authorizer, a listener with SASL PLAIN, and the lines that the authorizer logs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from proxy.local.cluster import Node
from proxy.local.ports import free_ports
from tests.integration.logins import SECURITY

DECISION = re.compile(
    r"Principal = (?P<principal>\S+) is (?P<decision>Allowed|Denied) operation = (?P<operation>\w+) from host = \S+"
    r" on resource = (?P<type>\w+):LITERAL:(?P<name>\S+) for request = (?P<api>\w+)"
)
"""A line of ``kafka.authorizer.logger``. Denials are INFO, the others DEBUG."""

LOGIN = f"{SECURITY}.plain.PlainLoginModule required"


def secured_properties(node: Node, users: Sequence[str]) -> tuple[dict[str, str], str, str]:
    """Return the properties that add the listener ``SASL`` to ``node``, its address, and the one that it advertises.

    The password of each user is ``NAME-secret``. ``admin`` may do everything, and so may who does not log in.
    """
    behind, before = (f"127.0.0.1:{port}" for port in free_ports(2))
    listeners = {"CLIENT": node.upstream, "INTERNAL": node.internal, "CONTROLLER": node.controller, "SASL": behind}
    advertised = {"CLIENT": node.advertised, "INTERNAL": node.internal, "SASL": before}
    protocols = dict.fromkeys(listeners, "PLAINTEXT") | {"SASL": "SASL_PLAINTEXT"}
    passwords = " ".join(f'user_{name}="{name}-secret"' for name in users)
    properties = {
        "listeners": ",".join(f"{name}://{address}" for name, address in listeners.items()),
        "advertised.listeners": ",".join(f"{name}://{address}" for name, address in advertised.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": f"{LOGIN} {passwords};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
    }
    return properties, behind, before


def login(user: str, folder: Path) -> Path:
    """Write and return the file with which Kafka's tools log in as ``user``."""
    path = folder / f"{user}.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={LOGIN} username="{user}" password="{user}-secret";\n'
    )
    return path
