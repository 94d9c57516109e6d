"""Plain tables for people, without a library that takes time to import."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Return rows below ``head``. Columns of ``left`` are left-aligned, the others, which are numbers,
    right-aligned."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def printable(text: str) -> str:
    """Return ``text`` without characters that would control a terminal: these are shown as escapes."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
