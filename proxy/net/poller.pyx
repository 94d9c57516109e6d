# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The epoll set of all relays and TLS handshakes of one event loop, which watches it as one descriptor.

Only compiled modules use it.
"""

cimport cython
from libc.errno cimport errno
from libc.stdint cimport uint32_t, uintptr_t
from posix.unistd cimport close as close_descriptor

import os

from proxy.net.round_robin import round_robin_for

cdef extern from "<sys/epoll.h>" nogil:
    int epoll_create1(int flags)
    int epoll_ctl(int epoll, int operation, int fd, epoll_event *event)
    int epoll_wait(int epoll, epoll_event *events, int most, int timeout)
    int EPOLL_CLOEXEC
    int EPOLL_CTL_ADD
    int EPOLL_CTL_MOD
    int EPOLL_CTL_DEL


cdef class Watched:
    cdef int on_event(self, bint second, uint32_t events) except -1:
        """Handle the epoll events of the first socket, or of the second. It must not raise."""
        raise NotImplementedError


@cython.final
cdef class Poller:
    def __cinit__(self, loop):
        self.loop, self.round_robin = loop, round_robin_for(loop)
        self.watched = set()
        self.removed = []
        self.fd = epoll_create1(EPOLL_CLOEXEC)
        if self.fd < 0:
            raise OSError(errno, os.strerror(errno))
        loop.add_reader(self.fd, self.on_events)

    def __dealloc__(self):
        if self.fd >= 0:
            close_descriptor(self.fd)

    cdef int add(self, Watched one) except -1:
        """Expect ``set_events`` of its sockets."""
        self.watched.add(one)
        return 0

    cdef int remove(self, Watched one) except -1:
        """Forget it, once no socket of it is registered."""
        if one in self.watched:
            if self.dispatching:
                self.removed.append(one)
            self.watched.discard(one)
        return 0

    def on_events(self):
        """Dispatch the pending epoll events."""
        cdef int at, count = epoll_wait(self.fd, self.events, MAX_EVENTS, 0)
        cdef uintptr_t name
        self.dispatching = True
        self.handshake_stepped = False
        for at in range(count):
            name = <uintptr_t>self.events[at].data.ptr
            (<Watched><void *>(name & ~<uintptr_t>1)).on_event(name & 1, self.events[at].events)
        self.dispatching = False
        self.removed.clear()

    cdef int set_events(self, Watched one, bint second, int fd, uint32_t before, uint32_t events) except -1:
        """Register a socket for ``events``, which was registered for others, ``before``.

        Without events remove it, since EPOLLERR would be reported repeatedly.
        """
        cdef epoll_event event
        event.events = events
        event.data.ptr = <void *>(<uintptr_t><void *>one | second)
        if epoll_ctl(
            self.fd, EPOLL_CTL_DEL if not events else EPOLL_CTL_MOD if before else EPOLL_CTL_ADD, fd, &event
        ):
            raise OSError(errno, os.strerror(errno))
        return 0


cdef Poller current = None


cdef Poller poller_of(loop):
    """Return the poller of ``loop``, which runs in this thread."""
    global current
    if current is None or current.loop is not loop:
        current = Poller(loop)
    return current
