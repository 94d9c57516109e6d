"""Long names are cut, and stay apart."""

from __future__ import annotations

from hashlib import sha256

import pytest

from proxy.core.names import MAX_NAME, clip, shorten
from tests.cases import each


@each("name", [b"", b"orders", b"x" * MAX_NAME, "é".encode() * 128, b"\x80" * MAX_NAME])
def test_a_name_that_fits_stays(name: bytes) -> None:
    assert shorten(name) == name


def test_a_long_name_is_its_beginning_and_a_hash_of_the_whole() -> None:
    name = b"x" * 32_767
    assert shorten(name) == b"x" * 237 + "…".encode() + sha256(name).hexdigest()[:16].encode()


@each("letter", ["x", "é", "€", "😀"])
@each("before", range(4))
def test_it_is_cut_between_two_characters(letter: str, before: int) -> None:
    name = "-" * before + letter * 300
    cut = shorten(name.encode()).decode()
    assert name.startswith(cut[:-17])
    assert cut[-17] == "…"
    assert MAX_NAME - 4 < len(cut.encode()) <= MAX_NAME
    assert clip(name) == cut
    assert clip(cut) == cut


@each("name", [b"\x80" * 257, b"\xff" * 32_767, b"x" * 236 + b"\x80" * 300])
def test_bytes_that_are_no_text_are_cut_too(name: bytes) -> None:
    assert len(shorten(name)) <= MAX_NAME


@pytest.mark.promise(
    "audit-event.md", "Long names are cut to 256 bytes with a hash of the whole, so that two of them stay two."
)
def test_names_that_begin_alike_stay_two() -> None:
    assert shorten(b"x" * 300) != shorten(b"x" * 301)
    assert clip("x" * 300) != clip("x" * 299 + "y")


def test_a_surrogate_of_a_configuration_is_kept() -> None:
    assert clip("\udc80" * 300).startswith("\udc80" * 79 + "…")
