# cython: language_level=3
"""Big-endian integers of memory; the caller knows that the bytes are there."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef inline int16_t int16_at(const uint8_t *at) noexcept nogil:
    return <int16_t>(<uint16_t>at[0] << 8 | at[1])


cdef inline int32_t int32_at(const uint8_t *at) noexcept nogil:
    return <int32_t>(<uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3])


cdef inline int64_t int64_at(const uint8_t *at) noexcept nogil:
    return <int64_t>(<uint64_t><uint32_t>int32_at(at) << 32 | <uint32_t>int32_at(at + 4))
