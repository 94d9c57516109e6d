"""Texts that clients choose, as events have them."""

from __future__ import annotations

from proxy.core.names import MAX_NAME, shorten


def clip(text: str) -> str:
    """Return ``text``; ``proxy.core.names.shorten`` cuts one of more than 256 bytes in UTF-8."""
    if len(text) <= MAX_NAME // 4:  # of up to four bytes each
        return text
    return shorten(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def clip_optional(text: str | None) -> str | None:
    """Return ``clip(text)``, and None for None."""
    return None if text is None else clip(text)
