from libc.stdint cimport uint32_t

cdef extern from "<sys/epoll.h>" nogil:
    cdef union epoll_data:
        void *ptr
    cdef struct epoll_event:
        uint32_t events
        epoll_data data
    uint32_t EPOLLIN
    uint32_t EPOLLOUT

cdef enum:
    MAX_EVENTS = 256  # sockets handled in one callback; the event loop's other work runs between two of them


cdef class Watched:
    """What has one or two sockets in a poller."""

    cdef int on_event(self, bint second, uint32_t events) except -1


cdef class Poller:
    cdef object loop
    cdef object round_robin
    cdef int fd
    cdef bint dispatching
    cdef bint handshake_stepped  # whether a TLS handshake had a step in this callback
    cdef set watched  # those with a descriptor in the set; keeps the object alive that an event points to
    cdef list removed  # removed while events are dispatched; a later event of the same batch may point to them
    cdef epoll_event[MAX_EVENTS] events

    cdef int add(self, Watched one) except -1
    cdef int remove(self, Watched one) except -1
    cdef int set_events(self, Watched one, bint second, int fd, uint32_t before, uint32_t events) except -1


cdef Poller poller_of(loop)
