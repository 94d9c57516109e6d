"""Names of cipher suites: Kafka's, which are IANA's, and OpenSSL's.

Python's ``ssl`` chooses among the suites of TLS 1.2 alone; those of TLS 1.3 are all on, or TLS 1.3 is off.

Source: IANA's TLS Cipher Suites registry; ``openssl ciphers -stdname``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

TLS_1_3 = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
"""The suites of TLS 1.3 that OpenSSL has on."""

_CIPHERS = {
    "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "AES_128_CBC_SHA256": "AES128-SHA256",
    "AES_128_CBC_SHA": "AES128-SHA",
    "AES_256_CBC_SHA": "AES256-SHA",
}
_WITH_ECDHE = _CIPHERS | {
    "AES_256_CBC_SHA384": "AES256-SHA384",
    "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
}
_WITH_RSA = _CIPHERS | {"AES_256_CBC_SHA256": "AES256-SHA256"}

TLS_1_2 = {
    **{f"TLS_ECDHE_ECDSA_WITH_{name}": f"ECDHE-ECDSA-{openssl}" for name, openssl in _WITH_ECDHE.items()},
    **{f"TLS_ECDHE_RSA_WITH_{name}": f"ECDHE-RSA-{openssl}" for name, openssl in _WITH_ECDHE.items()},
    **{f"TLS_RSA_WITH_{name}": openssl for name, openssl in _WITH_RSA.items()},
}
"""OpenSSL's names of the suites of TLS 1.2, by IANA's. Not among them: those that need parameters for DHE."""

_KAFKA_NAMES = {openssl: name for name, openssl in TLS_1_2.items()}


def check(name: str) -> None:
    """Raise ValueError for a suite that is not known."""
    if name not in TLS_1_3 and name not in TLS_1_2:
        raise ValueError("is no cipher suite that is known here")


def check_all(names: Collection[str]) -> None:
    """Raise ValueError where some of the suites of TLS 1.3 are missing, but not all."""
    missing = [name for name in TLS_1_3 if name not in names]
    if names and 0 < len(missing) < len(TLS_1_3):
        raise ValueError(f"holds suites of TLS 1.3, but not {' and '.join(missing)}, which cannot be turned off alone")


def openssl_names(names: Sequence[str]) -> str:
    """Return OpenSSL's list of the suites of TLS 1.2 among ``names``, in their order."""
    return ":".join(TLS_1_2[name] for name in names if name in TLS_1_2)


def kafka_name(openssl_name: str) -> str:
    """Return Kafka's name of a suite; OpenSSL's where it is not known. Those of TLS 1.3 are the same."""
    return _KAFKA_NAMES.get(openssl_name, openssl_name)
