# Included by relay.pyx: system calls, one side of a relay, and the epoll set of all relays.

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int fd, void *buffer, size_t size, int flags)
    ssize_t send(int fd, const void *buffer, size_t size, int flags)
    int shutdown(int fd, int how)
    int MSG_NOSIGNAL
    int SHUT_WR

cdef extern from "<sys/ioctl.h>" nogil:
    int ioctl(int fd, unsigned long request, int *value)

cdef extern from "<linux/sockios.h>" nogil:
    unsigned long SIOCOUTQ

cdef extern from "<sys/epoll.h>" nogil:
    cdef union epoll_data:
        void *ptr
    cdef struct epoll_event:
        uint32_t events
        epoll_data data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll, int operation, int fd, epoll_event *event)
    int epoll_wait(int epoll, epoll_event *events, int most, int timeout)
    int EPOLL_CLOEXEC
    int EPOLL_CTL_ADD
    int EPOLL_CTL_MOD
    int EPOLL_CTL_DEL
    uint32_t EPOLLIN
    uint32_t EPOLLOUT

cdef enum:
    MAX_EVENTS = 256  # sockets handled in one callback; the event loop's other work runs between two of them


cdef inline int unacknowledged(int fd) noexcept nogil:
    """Return how many sent bytes the peer has not acknowledged yet."""
    cdef int count = 0
    ioctl(fd, SIOCOUTQ, &count)
    return count


@cython.final
@cython.no_gc
cdef class End:
    """One side of a relay: the client or the broker."""
    cdef int fd  # −1 before the socket is attached and after it is closed
    cdef bint is_broker
    cdef bint eof  # the peer has shut down its sending side
    cdef bint shutdown_after_send  # call shutdown(SHUT_WR) once ``unsent`` is empty
    cdef int paused  # bits of ``Reason``: why this side is not read
    cdef int failure  # errno of a failed send; what the peer sent before is still read
    cdef bint bulk  # the last read filled the buffer, so there may be more
    cdef uint32_t registered_events  # the epoll events this side is registered for
    cdef uint8_t *unsent  # bytes that the kernel has not accepted yet, NULL for none
    cdef Py_ssize_t sent  # bytes of ``unsent`` that were sent since
    cdef Py_ssize_t size  # bytes in ``unsent``
    cdef str name
    cdef TlsStream tls  # None where bytes pass as they are; ``unsent`` is encrypted then

    def __cinit__(self, bint is_broker):
        self.fd = -1
        self.is_broker = is_broker
        self.name = "broker" if is_broker else "client"

    def __dealloc__(self):
        PyMem_Free(self.unsent)
        if self.fd >= 0:
            close_descriptor(self.fd)


@cython.final
cdef class Poller:
    """The epoll set of all relays of one event loop."""
    cdef object loop
    cdef object round_robin
    cdef int fd
    cdef bint dispatching
    cdef set relays  # those with a descriptor in the set; keeps the relay alive that an event points to
    cdef list removed  # removed while events are dispatched; a later event of the same batch may point to them
    cdef epoll_event[MAX_EVENTS] events

    def __cinit__(self, loop):
        self.loop, self.round_robin = loop, round_robin_for(loop)
        self.relays = set()
        self.removed = []
        self.fd = epoll_create1(EPOLL_CLOEXEC)
        if self.fd < 0:
            raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        if self.fd >= 0:
            close_descriptor(self.fd)

    cdef int add(self, Relay relay) except -1:
        if not self.relays:
            self.loop.add_reader(self.fd, self.on_events)
        self.relays.add(relay)
        return 0

    cdef int remove(self, Relay relay) except -1:
        if relay in self.relays:
            if self.dispatching:
                self.removed.append(relay)
            self.relays.discard(relay)
            if not self.relays:
                self.loop.remove_reader(self.fd)
        return 0

    def on_events(self):
        """Dispatch the pending epoll events to their relays."""
        cdef int at, count = epoll_wait(self.fd, self.events, MAX_EVENTS, 0)
        cdef uintptr_t name
        self.dispatching = True
        for at in range(count):
            name = <uintptr_t>self.events[at].data.ptr
            (<Relay><void *>(name & ~<uintptr_t>1)).on_event(name & 1, self.events[at].events)
        self.dispatching = False
        self.removed.clear()

    cdef int set_events(self, Relay relay, End end, uint32_t events) except -1:
        """Register ``end`` for ``events``; without events remove it, since EPOLLERR would be reported repeatedly."""
        cdef epoll_event event
        if events == end.registered_events:
            return 0
        event.events = events
        event.data.ptr = <void *>(<uintptr_t><void *>relay | end.is_broker)
        if epoll_ctl(
            self.fd,
            EPOLL_CTL_DEL if not events else EPOLL_CTL_MOD if end.registered_events else EPOLL_CTL_ADD,
            end.fd,
            &event,
        ):
            raise OSError(errno, os.strerror(errno))
        end.registered_events = events
        return 0


cdef Poller current = None


cdef Poller poller_of(loop):
    """Return the poller of ``loop``, which runs in this thread."""
    global current
    if current is None or current.loop is not loop:
        current = Poller(loop)
    return current
