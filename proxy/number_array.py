"""Numbers of 64 bits in an array, for code that runs compiled and interpreted.

Interpreted, these functions run. Compiled, those of number_array.pxd do, which make no object of a number and check no
bounds: the caller knows that the place is there.
"""

from __future__ import annotations

from array import array


def number_at(numbers: array[int], at: int) -> int:
    """Return the number of 64 bits at this place, which is there."""
    return numbers[at]


def set_number(numbers: array[int], at: int, value: int) -> int:
    """Replace the number at this place."""
    numbers[at] = value
    return 0


def add_number(numbers: array[int], at: int, more: int) -> int:
    """Add to the number at this place."""
    numbers[at] += more
    return 0
