# cython: language_level=3, boundscheck=False, wraparound=False
"""See background.pyi."""

cimport cython
from libc.stdint cimport int32_t, uint32_t, uint64_t

cdef extern from "<sched.h>" nogil:
    int SCHED_OTHER
    int SCHED_BATCH

cdef extern from "<sys/syscall.h>" nogil:
    int SYS_sched_setattr
    int SYS_sched_getattr

cdef extern from "<unistd.h>" nogil:
    long syscall(long number, ...)

cdef enum:
    SLICE = 5_000_000  # ns; the system's own is 0.7 to 3 ms, by the number of CPUs

cdef struct Attributes:  # struct sched_attr of sched_setattr(2), which older C libraries do not have
    uint32_t size, policy
    uint64_t flags
    int32_t nice
    uint32_t priority
    uint64_t runtime, deadline, period


@cython.final
cdef class BackgroundThreads:
    cdef Attributes before
    cdef bint changed

    def __enter__(self):
        cdef Attributes wanted
        self.changed = False
        if syscall(SYS_sched_getattr, 0, &self.before, sizeof(Attributes), 0) == 0 and self.before.policy == SCHED_OTHER:
            wanted = self.before
            wanted.policy, wanted.runtime = SCHED_BATCH, SLICE
            self.changed = syscall(SYS_sched_setattr, 0, &wanted, 0) == 0

    def __exit__(self, *error):
        if self.changed:
            syscall(SYS_sched_setattr, 0, &self.before, 0)
