"""Long names are cut, and stay apart."""

from hashlib import sha256

import pytest

from proxy.core.names import MAX_NAME, clip, shorten
from tests.cases import each


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


@pytest.mark.promise(
    "audit-event.md", "Long names are cut to 256 bytes with a hash of the whole, so that two of them stay two."
)
def test_a_long_name_is_its_beginning_and_a_hash_of_the_whole() -> None:
    name = b"x" * 32_767
    assert shorten(name) == b"x" * 237 + "…".encode() + sha256(name).hexdigest()[:16].encode()
    assert clip("x" * 300) != clip("x" * 299 + "y")
    for fits in (b"", b"orders", b"x" * MAX_NAME, "é".encode() * 128, b"\x80" * MAX_NAME):
        assert shorten(fits) == fits
    for no_text in (b"\x80" * 257, b"\xff" * 32_767, b"x" * 236 + b"\x80" * 300):
        assert len(shorten(no_text)) <= MAX_NAME, no_text
    assert clip("\udc80" * 300).startswith("\udc80" * 79 + "…"), "a surrogate of a configuration"
