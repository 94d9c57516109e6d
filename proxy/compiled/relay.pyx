# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Twin of ``proxy.net.relay``: what it promises is told there. Here both sockets are plain descriptors that the loop
watches; a chunk is read into one buffer of the process, looked at, and sent on from there, so no byte is copied and no
object is made for it. What the kernel does not take is kept, and the other side is not read until that is gone: at
most ``READ_SIZE`` bytes wait for each side.
"""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport close as close_descriptor

from proxy.compiled.session cimport Session

import asyncio
import os

import structlog

from proxy.errors import PeerError
from proxy.net import relay

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int fd, void *buffer, size_t size, int flags)
    ssize_t send(int fd, const void *buffer, size_t size, int flags)
    int shutdown(int fd, int how)
    int MSG_NOSIGNAL
    int SHUT_WR

log = structlog.get_logger("proxy.net.relay")

cdef enum:
    READ_SIZE = 131072  # bytes read at once

cdef enum Reason:  # why a side is not read
    BACKLOG = 1
    IN_FLIGHT = 2
    DRAIN = 4

cdef uint8_t[READ_SIZE] chunk  # of the loop's thread; used up within one callback

cdef double SILENCE = relay.SILENCE
cdef double LINGER = relay.LINGER


cdef inline double monotonic() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec + now.tv_nsec * 1e-9


@cython.final
@cython.no_gc
cdef class End:
    """One side of a relay."""
    cdef int fd  # −1 before it is attached and after it is closed
    cdef bint is_broker
    cdef bint reading  # the loop watches for bytes to read
    cdef bint eof  # it sends no more
    cdef bint finish  # it is to be told that no more comes, once all that waits is sent
    cdef int paused  # Reasons
    cdef int failure  # errno of a send that failed
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
cdef class Relay:
    """As ``proxy.net.relay.Relay``."""

    cdef readonly object id
    cdef readonly object tally
    cdef readonly object ended_by
    cdef public object on_gone
    cdef object on_closed
    cdef object cause
    cdef object loop
    cdef object received
    cdef Session session
    cdef End client
    cdef End broker
    cdef bint draining
    cdef double last_byte_at

    def __init__(self, id, Session session, tally, on_closed, on_gone):
        self.id = id
        self.session = session
        self.tally = tally
        self.received = tally.received
        self.on_closed = on_closed
        self.on_gone = on_gone
        self.client = End(False)
        self.broker = End(True)
        self.last_byte_at = monotonic()

    @property
    def closed(self):
        return self.cause is not None

    @property
    def quiet(self):
        if self.client.waiting != NULL or self.broker.waiting != NULL:
            return False
        return monotonic() - self.last_byte_at > SILENCE if self.session is None else self.session.quiet

    @property
    def gone(self):
        return self.client.fd < 0 and self.broker.fd < 0

    def unsent(self, side):
        cdef End end = self.client if side == "client" else self.broker
        return end.size - end.sent

    async def attach(self, client, broker):
        self.loop = asyncio.get_running_loop()
        self.client.fd = client.detach()
        self.broker.fd = broker.detach()
        self.watch(self.broker)
        self.watch(self.client)

    def stop_reading_requests(self):
        self.draining = True
        if self.session is not None and self.session.is_between_requests():
            self.pause(self.client, DRAIN)

    def abort(self):
        self.close_end(self.client)
        self.close_end(self.broker)
        if self.on_gone is not None:
            self.on_gone(self)

    def close(self, cause, detail="", *, bint abort=False):
        cdef End end
        if self.cause is not None:
            return
        self.cause = cause
        for end in (self.client, self.broker):
            self.watch(end)
            if abort or end.waiting == NULL:
                self.close_end(end)
        if not self.gone:
            self.loop.call_later(LINGER, self.abort)
        if self.session is not None:
            self.session.end_all()
        self.on_closed(self, cause, detail)

    # ---- what the loop calls ------------------------------------------------------------------------------------

    def client_readable(self):
        self.readable(self.client)

    def broker_readable(self):
        self.readable(self.broker)

    def client_writable(self):
        self.writable(self.client)

    def broker_writable(self):
        self.writable(self.broker)

    cdef int readable(self, End end) except -1:
        """Read a chunk and carry it to the other side: header, forward, bodies."""
        cdef ssize_t size = recv(end.fd, chunk, READ_SIZE, 0)
        cdef Session session = self.session
        cdef End other = self.other(end)
        cdef bint bodies = False
        cdef double now
        if size <= 0:
            if size == 0:
                self.at_end(end)
            elif errno != EAGAIN and errno != EINTR:
                self.failed(end, errno)
            return 0
        self.received[end.name] = self.received[end.name] + size
        now = monotonic()
        if session is None:
            self.last_byte_at = now
            self.write(other, size, chunk)
        else:
            try:
                bodies = session.read(end.is_broker, chunk, size, now)
            except PeerError as error:
                self.refuse(end, error)
                return 0
            except Exception as error:
                self.abandon_session(error)
                session = None
            self.write(other, size, chunk)
            if bodies:
                session.read_bodies()
        if other.failure:
            self.failed(other, other.failure)
        elif session is None:
            pass
        elif end.is_broker:
            if self.client.paused & IN_FLIGHT and not session.is_saturated():
                self.resume(self.client, IN_FLIGHT)
        else:
            if session.is_saturated():
                self.pause(end, IN_FLIGHT)
            if self.draining and session.is_between_requests():
                self.pause(end, DRAIN)
        return 0

    cdef int writable(self, End end) except -1:
        """Send what waits; when all is sent, go on with what had to wait for it."""
        cdef ssize_t sent = send(end.fd, end.waiting + end.sent, end.size - end.sent, MSG_NOSIGNAL)
        if sent < 0:
            if errno != EAGAIN and errno != EINTR:
                self.failed(end, errno)
            return 0
        end.sent += sent
        if end.sent < end.size:
            return 0
        self.forget_waiting(end)
        if self.cause is not None:
            self.close_end(end)
            if self.gone:
                self.on_gone(self)
            return 0
        if end.finish:
            shutdown(end.fd, SHUT_WR)
        self.resume(self.other(end), BACKLOG)
        return 0

    # ---- parts of it --------------------------------------------------------------------------------------------

    cdef inline End other(self, End end):
        return self.client if end.is_broker else self.broker

    cdef int write(self, End end, Py_ssize_t size, const uint8_t *data) except -1:
        """Send ``data`` to ``end``, or keep what it does not take. Called only while nothing waits for it."""
        cdef ssize_t sent = send(end.fd, data, size, MSG_NOSIGNAL)
        if sent == size:
            return 0
        if sent < 0:
            if errno != EAGAIN and errno != EINTR:
                end.failure = errno
                return 0
            sent = 0
        end.waiting = <uint8_t *>PyMem_Malloc(size - sent)
        if end.waiting == NULL:
            raise MemoryError
        memcpy(end.waiting, data + sent, size - sent)
        end.sent = 0
        end.size = size - sent
        self.loop.add_writer(end.fd, self.broker_writable if end.is_broker else self.client_writable)
        self.pause(self.other(end), BACKLOG)
        return 0

    cdef int at_end(self, End end) except -1:
        """This side will send no more: tell the other one, and keep carrying its answers."""
        cdef End other = self.other(end)
        end.eof = True
        if self.ended_by is None:
            self.ended_by = "broker_closed" if end.is_broker else "client_closed"
        if other.eof:
            self.close(self.ended_by)
            return 0
        self.watch(end)
        if other.waiting != NULL:
            other.finish = True
        else:
            shutdown(other.fd, SHUT_WR)
        return 0

    cdef int failed(self, End end, int error) except -1:
        """This side is lost."""
        cause = "broker_reset" if end.is_broker else "client_reset"
        self.forget_waiting(end)
        if self.cause is None:
            self.close(self.ended_by or cause, os.strerror(error))
        else:
            self.close_end(end)
            if self.gone:
                self.on_gone(self)
        return 0

    cdef int refuse(self, End end, error) except -1:
        """Close because of what this side sent; frames before the bad one still go on."""
        cdef Session session = self.session
        if session.clean:
            self.write(self.other(end), session.clean, chunk)
            session.read_bodies()
        self.tally.invalid_frames[error.side, error.reason] += 1
        self.close(f"{error.side}_{error.reason}", error.detail)
        return 0

    cdef int abandon_session(self, error) except -1:
        """Carry this connection on as bytes: an error of ours is no reason to end it."""
        cdef Session session = self.session
        self.session = None
        self.tally.abandoned += 1
        log.error("session_abandoned", connection_id=self.id, error=type(error).__name__, exc_info=error)
        try:
            session.read_bodies()
            session.end_all()
        except Exception:  # it has failed once already
            pass
        if self.client.paused & IN_FLIGHT:
            self.resume(self.client, IN_FLIGHT)
        return 0

    cdef int pause(self, End end, Reason reason) except -1:
        if not end.paused:
            self.tally.pauses[end.name] += 1
        end.paused |= reason
        self.watch(end)
        return 0

    cdef int resume(self, End end, Reason reason) except -1:
        end.paused &= ~reason
        self.watch(end)
        return 0

    cdef int watch(self, End end) except -1:
        """Let the loop watch this side for bytes to read, or not."""
        cdef bint wanted = end.fd >= 0 and self.cause is None and not end.eof and not end.paused
        if wanted and not end.reading:
            self.loop.add_reader(end.fd, self.broker_readable if end.is_broker else self.client_readable)
        elif end.reading and not wanted:
            self.loop.remove_reader(end.fd)
        end.reading = wanted
        return 0

    cdef int forget_waiting(self, End end) except -1:
        if end.waiting != NULL:
            self.loop.remove_writer(end.fd)
            PyMem_Free(end.waiting)
            end.waiting = NULL
            end.sent = end.size = 0
        return 0

    cdef int close_end(self, End end) except -1:
        self.forget_waiting(end)
        if end.fd >= 0:
            if end.reading:
                end.reading = False
                self.loop.remove_reader(end.fd)
            close_descriptor(end.fd)
            end.fd = -1
        return 0
