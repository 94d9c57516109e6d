"""The options with a file of keys that sign the records of one of the sidecars' topics."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from proxy.errors import LocalError

AUDIT_KEYS, REGISTRY_KEYS = "--hmac-keys", "--registry-hmac-keys"


def add_hmac_keys(parser: ArgumentParser, option: str, meaning: str) -> None:
    """Add ``option``, whose file ``hmac_keys`` reads."""
    parser.add_argument(option, type=Path, metavar="FILE", help=meaning)


def hmac_keys(option: str, path: Path | None) -> dict[str, bytes]:
    """Return the keys in ``path`` by id, none without it. Raises LocalError, which shows nothing of a key."""
    from proxy.config.hmac_keys import load_text
    from proxy.core.authentication import read_keys

    try:
        return {} if path is None else read_keys(load_text(path))
    except ValueError as error:
        raise LocalError(f"{option}: file {str(path)!r} {error}") from None
