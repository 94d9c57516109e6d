"""Names that clients choose, of any length, in a bounded number of bytes."""

from __future__ import annotations

from hashlib import sha256

MAX_NAME = 256
"""Bytes of a name that is kept, in UTF-8. Names of topics have at most 249."""

DIGITS = 16
"""Digits of the hash in a name that was cut."""

MARK = "…".encode()


def shorten(name: bytes) -> bytes:
    """Return ``name``; a longer one as its beginning, ``…`` and 16 hexadecimal digits of the SHA-256 of the whole name.

    So two long names that begin alike stay two, in all sidecars alike.
    """
    if len(name) <= MAX_NAME:
        return name
    end = MAX_NAME - len(MARK) - DIGITS
    while name[end] & 0xC0 == 0x80:  # inside a character
        end -= 1
        if end <= MAX_NAME - len(MARK) - DIGITS - 4:  # not UTF-8
            break
    return name[:end] + MARK + sha256(name).hexdigest()[:DIGITS].encode()


def clip(text: str) -> str:
    """Return ``text``; ``shorten`` cuts one of more than 256 bytes in UTF-8."""
    if len(text) <= MAX_NAME // 4:  # of up to four bytes each
        return text
    return shorten(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def clip_optional(text: str | None) -> str | None:
    """Return ``clip(text)``, and None for None."""
    return None if text is None else clip(text)
