# Part of session.pyx: what one session holds of the budget (``proxy.core.budget``).

cdef int64_t FREE = budget.FREE
cdef int64_t EXCHANGE = budget.EXCHANGE
cdef int64_t CLIENT_ID = budget.CLIENT_ID


@cython.final
@cython.no_gc
cdef class Account:
    def __init__(self, budget):
        self.budget = budget
        self.counts = budget.counts

    cdef bint is_scarce(self) noexcept:
        """Whether all connections together hold too much."""
        return self.counts[OPEN_BYTES] + self.counts[RECORDED] > self.counts[LIMIT]

    cpdef bint is_full(self) noexcept:
        """Whether this connection holds more than its free share, while all together hold too much."""
        return self.held > FREE and self.is_scarce()

    cpdef int charge(self, int64_t size) except -1:
        """Hold ``size`` bytes more, or fewer where it is negative."""
        self.held += size
        self.counts[OPEN_BYTES] += size
        return 0

    cpdef bint take(self, int64_t size) noexcept:
        """Hold ``size`` bytes more of what may be left out; returns False, and holds none of them, without room."""
        if size > 0 and self.counts[OPEN_BYTES] + self.counts[RECORDED] + size > self.counts[OPTIONAL]:
            return False
        self.held += size
        self.counts[OPEN_BYTES] += size
        return True

    cpdef void record(self, int64_t size) noexcept:
        """``size`` of the bytes that are held belong to an exchange that was recorded."""
        self.held -= size
        self.counts[OPEN_BYTES] -= size
        self.counts[RECORDED] += size

    cpdef void close(self) noexcept:
        """The session has ended: it holds nothing any more."""
        self.counts[OPEN_BYTES] -= self.held
        self.held = 0
