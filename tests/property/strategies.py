"""Hypothesis strategies: numbers, and bytes in pieces or damaged."""

from hypothesis import strategies as st

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def cuts(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """``data`` in pieces of one byte, or cut at random places."""
    if draw(st.integers(0, 3)) == 0:
        return [data[at : at + 1] for at in range(len(data))]
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """``data`` with bytes changed, taken out or put in, or its end cut off."""
    out = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(out)))
        what = draw(st.integers(0, 4))
        if what == 0:
            out[at : at + 1] = draw(st.sampled_from([b"\0", b"\1", b"\x7f", b"\x80", b"\xff"]))
        elif what == 1:
            out[at : at + 4] = draw(st.sampled_from([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xfe", b"\x80\0\0\0"]))
        elif what == 2:
            out[at:at] = draw(st.binary(max_size=8))
        elif what == 3:
            del out[at : at + draw(st.integers(1, 8))]
        else:
            del out[at:]
    return bytes(out)
