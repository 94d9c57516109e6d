"""The lines that Kafka's authorizer logs, and logins of Kafka's tools."""

from __future__ import annotations

import re
from pathlib import Path

from tests.integration.logins import SECURITY

DECISION = re.compile(
    r"Principal = (?P<principal>\S+) is (?P<decision>Allowed|Denied) operation = (?P<operation>\w+) from host = \S+"
    r" on resource = (?P<type>\w+):LITERAL:(?P<name>\S+) for request = (?P<api>\w+)"
)
"""A line of ``kafka.authorizer.logger``. Denials are INFO, the others DEBUG."""

LOGIN = f"{SECURITY}.plain.PlainLoginModule required"


def login(user: str, folder: Path) -> Path:
    """Write and return the file with which Kafka's tools log in as ``user``."""
    path = folder / f"{user}.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={LOGIN} username="{user}" password="{user}-secret";\n'
    )
    return path
