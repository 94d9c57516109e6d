"""TLS and SASL of Kafka's Java client, as its tools take them (``--command-config``), as settings of librdkafka."""

from __future__ import annotations

import re
from pathlib import Path

from proxy.commands.properties import read_properties
from proxy.errors import LocalError

_JAAS = re.compile(r"\s*(?:\w+\.)*(?P<module>\w+)\s+required\b(?P<options>.*?);?\s*", re.DOTALL)
_OPTION = re.compile(r'(\w+)\s*=\s*"((?:\\.|[^"\\])*)"')

LOGIN_MODULES = ("PlainLoginModule", "ScramLoginModule")

PEM_SETTINGS = {
    "ssl.truststore.location": ("ssl.ca.location",),
    "ssl.truststore.certificates": ("ssl.ca.pem",),
    "ssl.keystore.location": ("ssl.certificate.location", "ssl.key.location"),
    "ssl.keystore.certificate.chain": ("ssl.certificate.pem",),
    "ssl.keystore.key": ("ssl.key.pem",),
}
"""Settings of Java's client that have counterparts where the store is PEM (KIP-651)."""

STORES = ("ssl.truststore", "ssl.keystore")


def client_settings(path: Path | None) -> dict[str, str]:
    """Return the settings in ``path`` by librdkafka's names; those that are librdkafka's already stay. None without
    ``path``.

    Raises LocalError for a store that is not PEM and a login module that is not known. It shows no value.
    """
    if path is None:
        return {}
    settings = read_properties(path)
    for store in STORES:
        kind = settings.pop(f"{store}.type", None)
        given = sorted(name for name in settings if name.startswith(f"{store}."))
        if given and (kind or "JKS").upper() != "PEM":
            raise LocalError(f"{path}: {given[0]} is not supported (allowed: with {store}.type=PEM)")
    for java, names in PEM_SETTINGS.items():
        if java in settings:
            settings.update(dict.fromkeys(names, settings.pop(java)))
    if settings.get("ssl.endpoint.identification.algorithm") == "":
        settings["ssl.endpoint.identification.algorithm"] = "none"
    if "sasl.jaas.config" in settings:
        settings.update(_login(path, settings.pop("sasl.jaas.config")))
    return settings


def _login(path: Path, jaas: str) -> dict[str, str]:
    found = _JAAS.fullmatch(jaas)
    if found is None or found["module"] not in LOGIN_MODULES:
        raise LocalError(f"{path}: sasl.jaas.config is not supported (allowed: {', '.join(LOGIN_MODULES)})")
    options = {name: re.sub(r"\\(.)", r"\1", value) for name, value in _OPTION.findall(found["options"])}
    if not {"username", "password"} <= options.keys():
        raise LocalError(f"{path}: sasl.jaas.config needs username and password")
    return {"sasl.username": options["username"], "sasl.password": options["password"]}
