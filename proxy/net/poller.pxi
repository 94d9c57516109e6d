# Part of relay.pyx: the system's calls, one side of a relay, and the epoll set of all relays.

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
    ROUND = 256  # sockets served before the loop's other work has its turn


cdef inline int unacknowledged(int fd) noexcept nogil:
    """Bytes that were sent and that the peer has not confirmed: how far it lags."""
    cdef int count = 0
    ioctl(fd, SIOCOUTQ, &count)
    return count


@cython.final
@cython.no_gc
cdef class End:
    """One side of a relay."""
    cdef int fd  # −1 before it is attached and after it is closed
    cdef bint is_broker
    cdef bint eof  # it sends no more
    cdef bint finish  # it is to be told that no more comes, once all that waits is sent
    cdef int paused  # Reasons why it is not read
    cdef int failure  # errno of a send that failed; what it sent before is still read
    cdef bint bulk  # the last read left something to be read
    cdef uint32_t watched  # what the poller watches it for
    cdef uint8_t *waiting  # what the kernel has not taken yet
    cdef Py_ssize_t sent  # of it
    cdef Py_ssize_t size  # of it
    cdef str name

    def __cinit__(self, bint is_broker):
        self.fd = -1
        self.is_broker = is_broker
        self.name = "broker" if is_broker else "client"

    def __dealloc__(self):
        PyMem_Free(self.waiting)
        if self.fd >= 0:
            close_descriptor(self.fd)


@cython.final
cdef class Poller:
    """The epoll set of all relays of one loop."""
    cdef object loop
    cdef object turns
    cdef int fd
    cdef bint serving
    cdef set relays  # with a descriptor in the set: whoever an event names is alive
    cdef list gone  # that left during this round: events of it may still name them
    cdef epoll_event[ROUND] events

    def __cinit__(self, loop):
        self.loop, self.turns = loop, turns_of(loop)
        self.relays = set()
        self.gone = []
        self.fd = epoll_create1(EPOLL_CLOEXEC)
        if self.fd < 0:
            raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        if self.fd >= 0:
            close_descriptor(self.fd)

    cdef int enter(self, Relay relay) except -1:
        if not self.relays:
            self.loop.add_reader(self.fd, self.serve)
        self.relays.add(relay)
        return 0

    cdef int leave(self, Relay relay) except -1:
        if relay in self.relays:
            if self.serving:
                self.gone.append(relay)
            self.relays.discard(relay)
            if not self.relays:
                self.loop.remove_reader(self.fd)
        return 0

    def serve(self):
        """Tell relays what became of their sockets."""
        cdef int at, count = epoll_wait(self.fd, self.events, ROUND, 0)
        cdef uintptr_t name
        self.serving = True
        for at in range(count):
            name = <uintptr_t>self.events[at].data.ptr
            (<Relay><void *>(name & ~<uintptr_t>1)).on_event(name & 1, self.events[at].events)
        self.serving = False
        self.gone.clear()

    cdef int watch(self, Relay relay, End end, uint32_t events) except -1:
        """Watch ``end`` for ``events``; for none, not even for errors, which would come again and again."""
        cdef epoll_event event
        if events == end.watched:
            return 0
        event.events = events
        event.data.ptr = <void *>(<uintptr_t><void *>relay | end.is_broker)
        if epoll_ctl(
            self.fd, EPOLL_CTL_DEL if not events else EPOLL_CTL_MOD if end.watched else EPOLL_CTL_ADD, end.fd, &event
        ):
            raise OSError(errno, os.strerror(errno))
        end.watched = events
        return 0


cdef Poller current = None


cdef Poller poller_of(loop):
    """The poller of the loop that runs in this thread."""
    global current
    if current is None or current.loop is not loop:
        current = Poller(loop)
    return current
