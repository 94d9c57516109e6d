# Twin of ``proxy.core.budget.Account``: what each part is for is told there. Part of session.pyx.

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
        return self.counts[OPEN_BYTES] + self.counts[RECORDED] > self.counts[LIMIT]

    cdef bint is_full(self) noexcept:
        return self.held > FREE and self.is_scarce()

    cpdef int charge(self, int64_t size) except -1:
        self.held += size
        self.counts[OPEN_BYTES] += size
        return 0

    cdef bint take(self, int64_t size) noexcept:
        if size > 0 and self.counts[OPEN_BYTES] + self.counts[RECORDED] + size > self.counts[OPTIONAL]:
            return False
        self.held += size
        self.counts[OPEN_BYTES] += size
        return True

    cdef void record(self, int64_t size) noexcept:
        self.held -= size
        self.counts[OPEN_BYTES] -= size
        self.counts[RECORDED] += size

    cdef void close(self) noexcept:
        self.counts[OPEN_BYTES] -= self.held
        self.held = 0
