# Included by relay.pyx: system calls, and one side of a relay.

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
