"""Files of HMAC keys, which authenticate the records of the sidecars' own topics."""

from __future__ import annotations

from pathlib import Path

from proxy.config.regular_files import read_regular
from proxy.config.values import Secret
from proxy.core.authentication import Authenticator, read_keys

MAX_KEYS_BYTES = 65_536

REGISTRY, FEATURES, GROUPS = "brokerside-registry/1", "brokerside-features/1", "brokerside-groups/1"
AUDIT = "brokerside-audit/1"
"""Labels that are signed with a record, so that a record of one topic is not valid in another. The first three have
the same keys."""


def authenticator(label: str, text: Secret | None) -> Authenticator | None:
    """Return an Authenticator with the keys in ``text``, from ``load_text``; None without keys."""
    return None if text is None else Authenticator(label, read_keys(text.reveal()))


def load_text(path: Path) -> str:
    """Return the text of the file of keys at ``path``. Raises ValueError, whose message shows nothing of a key."""
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
