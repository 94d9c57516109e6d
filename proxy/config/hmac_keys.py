"""Files of HMAC keys: the secrets that show who wrote a record of one of the sidecar's own topics."""

from __future__ import annotations

from pathlib import Path

from proxy.config.regular_files import read_regular
from proxy.config.values import Secret
from proxy.core.authentication import Authenticator, read_keys

MAX_KEYS_BYTES = 65_536

REGISTRY, AUDIT = "brokerside-registry/1", "brokerside-audit/1"
"""What is signed beside a record, so that no topic's record counts in another one."""


def authenticator(label: str, text: Secret | None) -> Authenticator | None:
    """Return who signs and verifies with the keys in ``text``, of ``load_text``; None without them."""
    return None if text is None else Authenticator(label, read_keys(text.reveal()))


def load_text(path: Path) -> str:
    """Return what is in the file of keys at ``path``. Raises ValueError, which names nothing of a key."""
    try:
        content = read_regular(path, MAX_KEYS_BYTES + 1)
        if len(content) > MAX_KEYS_BYTES:
            raise ValueError(f"holds more than {MAX_KEYS_BYTES} bytes (allowed: up to {MAX_KEYS_BYTES})")
        text = content.decode()
    except UnicodeDecodeError:
        raise ValueError("is not text in UTF-8") from None
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    read_keys(text)
    return text
