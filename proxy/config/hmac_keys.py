"""Files of HMAC keys: the secrets that show who wrote a record of one of the sidecar's own topics."""

from __future__ import annotations

from pathlib import Path

from proxy.config.regular_files import read_regular
from proxy.core.authentication import Authenticator

MAX_BYTES = 65_536

REGISTRY = "brokerside-registry/1"
"""What is signed beside a record, so that no topic's record counts in another one."""


def load_authenticator(label: str, path: str | None) -> Authenticator | None:
    """Read the keys in the file at ``path``; None without one. Raises ValueError, which names nothing of a key."""
    if path is None:
        return None
    try:
        content = read_regular(Path(path), MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"holds more than {MAX_BYTES} bytes (allowed: up to {MAX_BYTES})")
        return Authenticator.of(label, content.decode())
    except UnicodeDecodeError:
        raise ValueError("is not text in UTF-8") from None
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
