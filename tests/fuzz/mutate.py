"""Inputs from seeds: copies with bytes overwritten, put in, taken out, doubled or joined; and some that are noise."""

from collections.abc import Sequence
from random import Random
from typing import Any

NOISE_SHARE = 0.05
MAX_INPUT = 16_384
"""Bytes; longer inputs are cut."""

NUMBERS = [
    number.to_bytes(width, "big", signed=True)
    for width in (1, 2, 4, 8)
    for number in (0, 1, -1, -2, 2 ** (8 * width - 1) - 1, -(2 ** (8 * width - 1)), 61, 127)
]
VARINTS = [b"\x80\x01", b"\xff\x7f", b"\xff\xff\x03", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\xff" * 10]
WORDS = [*NUMBERS, *VARINTS]


class Mutator:
    """Makes inputs of ``seeds``; each follows from the state of ``rng``."""

    def __init__(self, rng: Random, seeds: Sequence[bytes]) -> None:
        self._rng = rng
        self._seeds = seeds

    def input(self) -> bytes:
        rng = self._rng
        if not self._seeds or rng.random() < NOISE_SHARE:
            return rng.randbytes(self._below(64 if rng.random() < 0.5 else 600))
        data = bytearray(self._pick(self._seeds))
        for _ in range(1 + self._below(4)):
            getattr(self, self._pick(STEPS))(data)
        return bytes(data[:MAX_INPUT])

    def _below(self, bound: int) -> int:
        return int(self._rng.random() * bound)

    def _pick(self, among: Sequence[Any]) -> Any:
        return among[self._below(len(among))]

    def _place(self, data: bytearray) -> int:
        """Anywhere, near the start more often: that is where the structure is."""
        return self._below(len(data) + 1 if self._rng.random() < 0.5 else min(len(data), 64) + 1)

    def flip(self, data: bytearray) -> None:
        if data:
            data[self._below(len(data))] ^= 1 << self._below(8)

    def overwrite(self, data: bytearray) -> None:
        at, word = self._place(data), self._pick(WORDS)
        data[at : at + len(word)] = word

    def change(self, data: bytearray) -> None:
        if data:
            data[min(self._place(data), len(data) - 1)] = self._below(256)

    def nudge(self, data: bytearray) -> None:
        """Count one byte up or down: lengths that are off by a little."""
        if data:
            at = min(self._place(data), len(data) - 1)
            data[at] = (data[at] + self._below(9) - 4) & 255

    def put_in(self, data: bytearray) -> None:
        at = self._place(data)
        data[at:at] = self._pick(WORDS) if self._rng.random() < 0.5 else self._rng.randbytes(1 + self._below(8))

    def take_out(self, data: bytearray) -> None:
        at = self._place(data)
        del data[at : at + 1 + self._below(16)]

    def cut(self, data: bytearray) -> None:
        del data[self._below(len(data) + 1) :]

    def double(self, data: bytearray) -> None:
        at = self._place(data)
        data[at:at] = data[at : at + 1 + self._below(200)]

    def join(self, data: bytearray) -> None:
        other = self._pick(self._seeds)
        data[self._place(data) :] = other[self._below(len(other) + 1) :]


STEPS = (
    "flip", "flip", "overwrite", "overwrite", "overwrite", "change", "change", "nudge", "nudge", "put_in", "take_out",
    "cut", "double", "join",
)  # fmt: skip
"""Methods, the more often the more often they stand here."""


def cuts(rng: Random, data: bytes) -> list[bytes]:
    """``data`` in pieces, cut at up to six places."""
    places = sorted(int(rng.random() * (len(data) + 1)) for _ in range(int(rng.random() * 7)))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


def single(data: bytes) -> list[bytes]:
    """``data`` in pieces of one byte."""
    return [data[at : at + 1] for at in range(len(data))]
