"""Types of the configuration's values, with the error messages for invalid ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, PlainValidator

from proxy.config.values import INT32_MAX, Endpoint, FileText, Secret, address, network
from proxy.coordinator.registration import MAX_ID_BYTES, is_group_id
from proxy.coordinator.subscription import is_topic_name
from proxy.protocol.versions import version_int
from proxy.tls import cipher_suites
from proxy.tls.principal_mapping import PrincipalMapper
from proxy.tls.tls_settings import TlsVersion

ENDPOINT = "host:port, port 1–65535"
PLAIN = "text, a number, true or false"
TOPIC_NAME_RULE = "1 to 249 of A-Z a-z 0-9 . _ -"

GROUP_ID_RULE = f"1 to {MAX_ID_BYTES} characters of printable ASCII"

MAX_SOCKET_PATH = 90
"""Bytes of the path of a Unix socket. The kernel takes 107, and a socket has a longer name until it gets its path."""

MAX_VERSION_TEXT = 100
MAX_TAGS = 100
MAX_TAG_VALUE = 1024
"""Characters of a tag's value: all tags of a broker fit into one record of the fleet's registry."""

_LISTENER_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_CLASS_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_TAG_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NODE_ID = re.compile(r"[0-9]{1,10}")
_HOST_NAME = re.compile(r"(?=.{1,253}\.?\Z)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_PRINCIPAL = re.compile(r"[^:\s]+:.+")

ProxyProtocol = Literal["disabled", "required"]
SecurityProtocol = Literal["PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL"]
UnsupportedResponse = Literal["empty", "close", "forward"]
AuditMode = Literal["event", "rollup"]
IdentificationAlgorithm = Literal["https", ""]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "json", "text"]
Plain = str | int | float | bool


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("is not text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("holds a character that UTF-8 does not have") from None
    return value


def _matching(pattern: re.Pattern[str], what: str) -> PlainValidator:
    def check(value: object) -> str:
        value = _text(value)
        if not pattern.fullmatch(value):
            raise ValueError(f"is not {what}")
        return value

    return PlainValidator(check)


def _topic(value: object) -> str:
    value = _text(value)
    if not is_topic_name(value):
        raise ValueError("is not a topic's name")
    return value


def _group_id(value: object) -> str:
    value = _text(value)
    if not is_group_id(value):
        raise ValueError("is no group's id")
    return value


def _host_name(value: object) -> str:
    value = _text(value)
    if not _HOST_NAME.fullmatch(value):
        raise ValueError("is not a host name")
    return value.lower().removesuffix(".")


def _servers(value: object) -> str:
    value = _text(value)
    return ",".join(str(Endpoint.parse(server.strip())) for server in value.split(","))


def _plain(value: object) -> Plain:
    if not isinstance(value, str | int | float):
        raise ValueError("is not a plain value")
    return _text(value) if isinstance(value, str) else value


def _plain_or_secret(value: object) -> Plain | Secret:
    if isinstance(value, Secret):
        _text(value.reveal())
        return value
    return _plain(value)


def _folder(value: object) -> str:
    value = _text(value)
    if not value.startswith("/") or "\0" in value:
        raise ValueError("is not an absolute path")
    return value


def _socket_path(value: object) -> str:
    value = _folder(value)
    if len(value.encode()) > MAX_SOCKET_PATH:
        raise ValueError("is too long for a Unix socket")
    return value


def _contents(value: object) -> Secret:
    if not isinstance(value, Secret):  # ``secret_files`` takes what may be one
        raise ValueError("is no path")
    return value


def _pem(value: object) -> FileText:
    if not isinstance(value, FileText):  # ``tls_files`` takes what may be a path
        raise ValueError("is no path")
    return value


def _secret(value: object) -> Secret:
    if not isinstance(value, Secret):
        raise ValueError("is no reference to a file")
    return value


def _cipher_suite(value: object) -> str:
    value = _text(value)
    cipher_suites.check(value)
    return value


def _cipher_suites(value: tuple[str, ...]) -> tuple[str, ...]:
    cipher_suites.check_all(value)
    return value


def _mapping_rules(value: object) -> str:
    value = _text(value)
    PrincipalMapper(value)
    return value


def _version(value: object) -> str:
    value = _text(value)
    if len(value) > MAX_VERSION_TEXT:
        raise ValueError(f"has more than {MAX_VERSION_TEXT} characters")
    try:
        version_int(value)
    except ValueError:
        raise ValueError("is no version") from None
    return value


def _tag_value(value: object) -> str:
    value = _text(value)
    if len(value) > MAX_TAG_VALUE:
        raise ValueError(f"has more than {MAX_TAG_VALUE} characters")
    return value


def _tags(value: dict[str, str]) -> dict[str, str]:
    if len(value) > MAX_TAGS:
        raise ValueError(f"holds more than {MAX_TAGS} tags")
    return value


def _node_id(value: object) -> int:
    if isinstance(value, str) and _NODE_ID.fullmatch(value):
        value = int(value)
    if type(value) is not int or not 0 <= value <= INT32_MAX:
        raise ValueError("is no broker's id")
    return value


def split(value: object) -> object:
    """Return a list for a text with commas; any other value as it is."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def not_empty(value: object) -> object:
    """Return ``value``. Raises ValueError for an empty list."""
    # pydantic's min_length counts valid items only, and would call a list of mistakes empty.
    if value == []:
        raise ValueError("is empty")
    return value


Address = Annotated[Endpoint, PlainValidator(Endpoint.parse), PlainSerializer(str)]
Servers = Annotated[str, PlainValidator(_servers)]
Host = Annotated[str, PlainValidator(address)]
HostName = Annotated[str, PlainValidator(_host_name)]
Network = Annotated[str, PlainValidator(network)]
ListenerName = Annotated[str, _matching(_LISTENER_NAME, "a listener's name")]
ClassName = Annotated[str, _matching(_CLASS_NAME, "package.module:Class")]
Principal = Annotated[str, _matching(_PRINCIPAL, "a principal")]
Topic = Annotated[str, PlainValidator(_topic)]
GroupId = Annotated[str, PlainValidator(_group_id)]
Folder = Annotated[str, PlainValidator(_folder)]
SocketPath = Annotated[str, PlainValidator(_socket_path)]
SecretFile = Annotated[Secret, PlainValidator(_contents), PlainSerializer(str)]
"""In the file the path of a secret file; after loading its text."""
PemFile = Annotated[FileText, PlainValidator(_pem), PlainSerializer(str)]
"""In the file the path of a file in PEM; after loading its text."""
SecretText = Annotated[Secret, PlainValidator(_secret), PlainSerializer(str)]
"""In the file ``{file: PATH}``; after loading the text of that file."""
CipherSuites = Annotated[
    tuple[Annotated[str, PlainValidator(_cipher_suite)], ...], AfterValidator(_cipher_suites), BeforeValidator(split)
]
TlsVersions = Annotated[tuple[TlsVersion, ...], BeforeValidator(not_empty), BeforeValidator(split)]
MappingRules = Annotated[str, PlainValidator(_mapping_rules)]
Version = Annotated[str, PlainValidator(_version)]
TagName = Annotated[str, _matching(_TAG_NAME, "a tag's name")]
Tags = Annotated[Mapping[TagName, Annotated[str, PlainValidator(_tag_value)]], AfterValidator(_tags)]
AddressesByNode = Mapping[Annotated[int, PlainValidator(_node_id)], Address]
Producer = Mapping[str, Annotated[Plain, PlainValidator(_plain)]]
ClientSettings = Mapping[
    str,
    Annotated[
        Plain | Secret,
        PlainValidator(_plain_or_secret),
        PlainSerializer(lambda value: str(value) if isinstance(value, Secret) else value),
    ],
]
ObserverSettings = Mapping[ClassName, ClientSettings]
