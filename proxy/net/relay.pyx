# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""One client connection: bytes from each side to the other, with back-pressure, half-close and one cause at its end.

Where a session is given, each chunk passes it in the order header, forward, bodies (see ``proxy.core.session``);
without one (TLS that passes through) bytes are all there is.

Both sockets are plain descriptors, all of them in one epoll set that the loop watches. A chunk is read into one buffer
of the process, looked at, and sent on from there, so no byte is copied and no object is made for it. What the kernel
does not take is kept in the side's own buffer.

Back-pressure: a side for which bytes are kept pauses the reading of the other side until they are sent. So at most one
chunk waits for each side, of ``READ_SIZE`` bytes unless that side had kept up so far; for the client besides what the
sidecar itself answered at a time. A client with ``MAX_IN_FLIGHT`` open requests is paused, too, and one that does not
read what the sidecar itself answers: then even what was already read of it waits (``Answers.rest``), as does what is
too much for one turn. So is a side that makes the process hold too much memory (``proxy.core.budget``).

The loop's own ``add_reader`` is not for sockets like these: after an error (EPOLLERR) uvloop calls once more and then
never again, so what a peer sent before its reset would be cut to one chunk, and the reset itself be missed.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uintptr_t
from libc.string cimport memcpy
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport close as close_descriptor

from proxy.core.session cimport Session

import asyncio
import os

import structlog

from proxy.core import budget
from proxy.errors import PeerError
from proxy.net.round_robin import turns_of
from proxy.telemetry import Repeated

log = structlog.get_logger(__name__)
repeated = Repeated(log)

cdef enum:
    READ_SIZE = 131072  # bytes read at once, as a rule
    BULK_SIZE = 262144  # the same where there is more and the other side keeps up: an eighth less CPU for a MiB

cdef enum Reason:  # why a side is not read
    BACKLOG = 1
    IN_FLIGHT = 2
    DRAIN = 4
    LOST = 8  # the other side takes no more
    ANSWERS = 16  # there is no room for what the sidecar answers
    MEMORY = 64  # connections hold too much memory
    TURN = 32  # what was read of it has its turn when the loop's other work has had its own

cdef uint8_t[BULK_SIZE] chunk  # of the loop's thread; used up within one callback

CLOSED_BY = ("client_closed", "broker_closed")
RESET_BY = ("client_reset", "broker_reset")

cdef Py_ssize_t SCARCE_CHUNK = budget.SCARCE_CHUNK
cdef double SILENCE = 1  # seconds without a byte after which a connection that is not read counts as quiet
cdef double LINGER = 10  # seconds in which a closed side may still take what was written to it; then it is cut


cdef inline double monotonic() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec + now.tv_nsec * 1e-9


include "poller.pxi"


@cython.final
cdef class Relay:
    """Both ends of one connection; relay.pyi says what its methods promise."""

    cdef readonly object tally
    cdef readonly object ended_by
    cdef readonly int64_t received_bytes  # from the client
    cdef readonly int64_t sent_bytes  # to the client
    cdef object known_as
    cdef int64_t requests_before  # of a session that was given up
    cdef public object on_gone
    cdef object on_closed
    cdef object cause
    cdef Poller poller  # None before it is attached
    cdef object received
    cdef readonly Session session
    cdef End client
    cdef End broker
    cdef bint draining
    cdef readonly double last_byte_at

    def __init__(self, connection, Session session, tally, on_closed, on_gone):
        self.known_as = connection
        self.session = session
        self.tally = tally
        self.received = tally.received
        self.on_closed = on_closed
        self.on_gone = on_gone
        self.client = End(False)
        self.broker = End(True)
        self.last_byte_at = monotonic()

    @property
    def id(self):
        return self.known_as.id

    @property
    def connection(self):
        return self.known_as if self.session is None else self.session.connection

    @property
    def requests(self):
        return self.requests_before if self.session is None else self.session.requests

    @property
    def client_id(self):
        return None if self.session is None else self.session.client_id

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

    def descriptor(self, side):
        return self.client.fd if side == "client" else self.broker.fd

    async def attach(self, client, broker):
        self.client.fd = client.detach()
        self.broker.fd = broker.detach()
        self.poller = poller_of(asyncio.get_running_loop())
        self.poller.enter(self)
        try:
            self.watch(self.broker)
            self.watch(self.client)
        except OSError:
            self.abort()
            raise

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
            if abort or end.waiting == NULL:
                self.close_end(end)
            else:
                self.watch(end)
        if not self.gone:
            self.poller.loop.call_later(LINGER, self.abort)
        if self.session is not None:
            self.session.end_all(monotonic())
        self.on_closed(self, cause, detail)

    # ---- what the loop calls ------------------------------------------------------------------------------------

    cdef int on_event(self, bint of_broker, uint32_t events) except -1:
        """One side can be read, or written to, or has failed. Errors end up in the log: nobody above can do better."""
        cdef End end = self.broker if of_broker else self.client
        try:
            if events & EPOLLOUT and end.waiting != NULL:
                self.writable(end)
            if events & ~EPOLLOUT and end.watched & EPOLLIN:
                self.readable(end)
            elif events & ~(EPOLLIN | EPOLLOUT) and end.waiting != NULL:
                self.writable(end)
        except Exception as error:
            self.broken(end, error)
        return 0

    cdef int broken(self, End end, error) except -1:
        """An error of ours that nobody above can do anything about."""
        log.error("relay_failed", connection_id=self.id, error=type(error).__name__, exc_info=error)
        self.close(RESET_BY[end.is_broker], str(error), abort=True)
        return 0

    cdef int readable(self, End end) except -1:
        """Read a chunk and carry it to the other side."""
        cdef End other = self.other(end)
        cdef ssize_t most = BULK_SIZE if end.bulk and unacknowledged(other.fd) < BULK_SIZE else READ_SIZE
        cdef ssize_t size
        if self.session is not None and self.session.account.is_scarce():
            most = SCARCE_CHUNK
        size = recv(end.fd, chunk, most, 0)
        if size <= 0:
            if size < 0 and (errno == EAGAIN or errno == EINTR):
                return 0
            if size == 0 and not end.failure:
                return self.at_end(end)
            return self.failed(end, end.failure or errno)
        end.bulk = size == most
        self.received[end.name] = self.received[end.name] + size
        if not end.is_broker:
            self.received_bytes += size
        self.last_byte_at = monotonic()
        self.carry(end, size, chunk)
        return 0 if end.is_broker else self.go_on()

    cdef int carry(self, End end, Py_ssize_t size, const uint8_t *data) except -1:
        """Carry a chunk of this side to the other: header, forward, bodies."""
        cdef Session session = self.session
        cdef End other = self.other(end)
        cdef bint bodies = False
        if session is None:
            self.write(other, size, data)
        else:
            try:
                bodies = session.read(end.is_broker, data, size, self.last_byte_at)
            except PeerError as error:
                self.refuse(end, error, data)
                return 0
            except Exception as error:
                self.abandon_session(error)
                if self.cause is not None:
                    return 0
                session = None
            if session is not None and session.diverted:
                self.divert(end, size, data)
            else:
                self.write(other, size, data)
            if bodies:
                session.read_bodies(monotonic())
        if session is not None and session.is_to_wait(end.is_broker):
            if not end.paused & MEMORY:
                session.account.budget.wait(self.broker_goes_on if end.is_broker else self.client_goes_on)
            self.pause(end, MEMORY)
        if other.failure and not end.paused & LOST:
            self.cannot_send(other)
        elif end.failure and not other.paused & LOST:
            self.cannot_send(end)
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
        return self.follow()

    def client_goes_on(self):
        return self.goes_on(self.client)

    def broker_goes_on(self):
        return self.goes_on(self.broker)

    cdef bint goes_on(self, End end) except -1:
        """There is memory for a chunk of this side. Returns whether it waited for that."""
        cdef bint waited = end.paused & MEMORY and self.cause is None
        if waited:
            self.resume(end, MEMORY)
        return waited

    cdef int go_on(self) except -1:
        if self.session is not None and self.session.keeps_rest() and not self.client.paused and self.cause is None:
            self.pause(self.client, TURN)
            self.poller.turns.enter(self.take_turn)
        return 0

    def take_turn(self):
        cdef bytes rest
        cdef bint there = self.session is not None and self.session.keeps_rest() and self.cause is None
        try:
            if there and self.client.paused == TURN:
                rest = self.session.answers.rest
                self.carry(self.client, PyBytes_GET_SIZE(rest), <const uint8_t *>PyBytes_AS_STRING(rest))
                if self.client.paused == TURN and self.session is not None and self.session.keeps_rest():
                    self.poller.turns.enter(self.take_turn)
                    return
            self.resume(self.client, TURN)
        except Exception as error:
            self.broken(self.client, error)

    cdef int writable(self, End end) except -1:
        """Send what waits; when all is sent, go on with what had to wait for it."""
        cdef ssize_t sent = send(end.fd, end.waiting + end.sent, end.size - end.sent, MSG_NOSIGNAL)
        if sent < 0:
            if errno != EAGAIN and errno != EINTR:
                end.failure = errno
                self.cannot_send(end)
            return 0
        end.sent += sent
        if end.sent < end.size:
            return 0
        self.forget_waiting(end)
        if self.cause is not None:
            return self.end_of(end)
        self.watch(end)
        if end.finish:
            shutdown(end.fd, SHUT_WR)
        self.resume(self.other(end), BACKLOG)
        return self.follow()

    # ---- parts of it --------------------------------------------------------------------------------------------

    cdef inline End other(self, End end):
        return self.client if end.is_broker else self.broker

    cdef int write(self, End end, Py_ssize_t size, const uint8_t *data) except -1:
        """Send ``data`` to ``end``, or keep what it does not take."""
        cdef ssize_t sent = 0
        cdef uint8_t *waiting
        if end.failure:
            return 0
        if end.waiting == NULL:
            sent = send(end.fd, data, size, MSG_NOSIGNAL)
            if sent < 0 and errno != EAGAIN and errno != EINTR:
                end.failure = errno
                return 0
        if not end.is_broker:
            self.sent_bytes += size
        if sent == size:
            return 0
        if sent < 0:
            sent = 0
        waiting = <uint8_t *>PyMem_Realloc(end.waiting, end.size + size - sent)
        if waiting == NULL:
            raise MemoryError
        memcpy(waiting + end.size, data + sent, size - sent)
        end.waiting = waiting
        end.size += size - sent
        self.watch(end)
        return self.pause(self.other(end), BACKLOG)

    cdef int divert(self, End end, Py_ssize_t size, const uint8_t *data) except -1:
        """Hand on what goes on in place of a chunk of ``end``, and what is said to the client."""
        cdef object answers = self.session.answers
        cdef bytes edited = answers.edited, replies = answers.replies
        if answers.failure is not None:
            report_failure(self.id, answers.failure)
        if edited is None:
            self.write(self.other(end), size, data)
        elif edited:
            self.write(self.other(end), PyBytes_GET_SIZE(edited), <const uint8_t *>PyBytes_AS_STRING(edited))
        if replies and not self.broker.eof:  # after that no answer can go out
            self.write(self.client, PyBytes_GET_SIZE(replies), <const uint8_t *>PyBytes_AS_STRING(replies))
        answers.let_go()
        return 0

    cdef int follow(self) except -1:
        """After a chunk, or once the client has taken what was written: pause or resume the client for want of room for
        answers, or end what is to end."""
        cdef Session session = self.session
        cdef End client = self.client
        if session is None or self.cause is not None:
            return 0
        if not (session.diverted or session.waits or client.paused & ANSWERS or self.broker.eof):
            return 0
        if session.is_closing() and session.answers.ending:
            self.close(session.answers.cause)
        elif self.broker.eof and (session.waits or session.is_saturated()):  # what they wait for will not come
            self.close(self.ended_by or CLOSED_BY[True])
        elif session.full or (client.waiting != NULL and (session.keeps_rest() or session.answers.replied)):
            self.pause(client, ANSWERS)
        elif client.paused & ANSWERS and client.waiting == NULL:
            self.resume(client, ANSWERS)
        return 0

    cdef int at_end(self, End end) except -1:
        """This side will send no more: tell the other one, and keep carrying its answers."""
        cdef End other = self.other(end)
        end.eof = True
        if self.ended_by is None:
            self.ended_by = CLOSED_BY[end.is_broker]
        if other.eof:
            self.close(self.ended_by)
            return 0
        self.watch(end)
        if other.waiting != NULL:
            other.finish = True
        else:
            shutdown(other.fd, SHUT_WR)
        return self.follow()

    cdef int cannot_send(self, End end) except -1:
        """This side takes no more, so the other one is not read any more. What it sent before is still carried."""
        cdef End other = self.other(end)
        self.forget_waiting(end)
        if self.cause is not None or end.eof or end.paused & ~BACKLOG:
            return self.failed(end, end.failure)
        other.paused |= LOST
        self.watch(other)
        return self.watch(end)

    cdef int failed(self, End end, int error) except -1:
        """This side is lost."""
        self.forget_waiting(end)
        if self.cause is not None:
            return self.end_of(end)
        self.close(self.ended_by or RESET_BY[end.is_broker], os.strerror(error))
        return 0

    cdef int refuse(self, End end, error, const uint8_t *data) except -1:
        """Close because of what this side sent; frames before the bad one still go on."""
        cdef Session session = self.session
        if session.diverted:
            self.divert(end, session.clean, data)
            session.read_bodies(monotonic())
        elif session.clean:
            self.write(self.other(end), session.clean, data)
            session.read_bodies(monotonic())
        self.tally.invalid_frames[error.side, error.reason] += 1
        self.close(f"{error.side}_{error.reason}", error.detail)
        return 0

    cdef int abandon_session(self, error) except -1:
        """Carry this connection on as bytes: an error of ours is no reason to end it, unless bytes would be missing."""
        cdef Session session = self.session
        cdef bint whole = session.untouched
        self.known_as, self.requests_before, self.session = self.connection, session.requests, None
        self.tally.abandoned += 1
        log.error("session_abandoned", connection_id=self.id, error=type(error).__name__, exc_info=error)
        for step in (session.walk, session.lost):
            try:
                step(monotonic())
            except Exception:  # noqa: S110  # it has failed once already
                pass
        if not whole:
            self.close("session_failed", type(error).__name__)
            return 0
        if self.client.paused & (IN_FLIGHT | MEMORY):
            self.client.paused &= ~MEMORY
            self.resume(self.client, IN_FLIGHT)
        if self.broker.paused & MEMORY:
            self.resume(self.broker, MEMORY)
        return 0

    cdef int pause(self, End end, Reason reason) except -1:
        if end.failure and reason != BACKLOG:  # nothing could end this pause any more
            return self.failed(end, end.failure)
        if not end.paused:
            self.tally.pauses[end.name] += 1
        end.paused |= reason
        return self.watch(end)

    cdef int resume(self, End end, Reason reason) except -1:
        end.paused &= ~reason
        self.watch(end)
        return 0 if end.is_broker else self.go_on()

    cdef int watch(self, End end) except -1:
        """Let the poller watch this side for what is of interest now."""
        cdef uint32_t events = 0
        if end.fd < 0:
            return 0
        if self.cause is None and not end.eof and not end.paused:
            events = EPOLLIN
        if end.waiting != NULL:
            events |= EPOLLOUT
        return self.poller.watch(self, end, events)

    cdef int forget_waiting(self, End end) except -1:
        PyMem_Free(end.waiting)
        end.waiting = NULL
        end.sent = end.size = 0
        return 0

    cdef int end_of(self, End end) except -1:
        """The last of a side that outlived ``close``."""
        self.close_end(end)
        if self.gone:
            self.on_gone(self)
        return 0

    cdef int close_end(self, End end) except -1:
        self.forget_waiting(end)
        if end.fd >= 0:
            self.poller.watch(self, end, 0)  # closing does not do it while another process still has the socket
            close_descriptor(end.fd)
            end.fd = -1
            if self.gone:
                self.poller.leave(self)
        return 0


cdef int report_failure(connection_id, error) except -1:
    """Log that an interceptor raised ``error``: what it was to answer or change went on as it came."""
    # In words: what is held back until it is due must not hold the bytes that its traceback leads to.
    repeated.warning("intercept_failed", connection_id=connection_id, error=f"{type(error).__name__}: {error}")
    return 0
