# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Relays one client connection: copies bytes in both directions, with back-pressure, half-close and one close cause.

If there is a session, each chunk passes it in the order header, forward, bodies (see ``proxy.core.session``). Without a
session, as for TLS that is passed through, the relay only copies bytes.

Both sockets are plain descriptors in one epoll set, which the event loop watches. The relay reads a chunk into a buffer
that the process shares, inspects it there and sends it from there. So it copies no bytes and creates no objects. Each
side has its own buffer for bytes that the kernel does not accept at once.

While a deferred request is served (``proxy.net.deferred_requests``), the broker's bytes go to it and not to the
session.

A side may have TLS (``End.tls``). Then what is received is decrypted before all else, and encrypted as the last step
before it is sent. Sizes and counts are those of the plaintext; the buffer of unsent bytes holds ciphertext.

Back-pressure: as long as bytes for one side are unsent, the other side is not read. So at most one chunk is buffered
for each side. A chunk has ``READ_SIZE`` bytes, or ``BULK_SIZE`` if the receiving side has kept up so far. The buffer of
the client may also hold responses of the sidecar itself. A client is not read either while

* it has ``MAX_IN_FLIGHT`` open requests,
* it does not read the responses of the sidecar itself, or a request of it is deferred; input that was already read
  then waits in ``Interception.rest``,
* it has sent more than one turn of the event loop processes; the rest waits in ``Interception.rest``, too,
* the process holds too much memory (``proxy.core.budget``), which pauses the broker's side as well,
* its connection is held for a limit of its principal (``hold_client``),
* it has sent tiny records of TLS, which wait in ``TlsStream.held``, or does not read what TLS itself answers.

``loop.add_reader`` is not used for these sockets. After an error (EPOLLERR) uvloop calls the reader once more and never
again. Bytes that the peer sent before its reset would be cut off after one chunk, and the reset would go unnoticed.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport close as close_descriptor

from proxy.core.interception cimport Interception
from proxy.core.session cimport Session
from proxy.net.poller cimport EPOLLIN, EPOLLOUT, Poller, Watched, poller_of
from proxy.net.tls_stream cimport TlsStream, opened

import asyncio
import os
import socket

import structlog

from proxy.core import budget
from proxy.core.interceptor import GivenUp
from proxy.errors import PeerError
from proxy.net.deferred_requests import DeferredRequest
from proxy.telemetry import RateLimitedLogger

log = structlog.get_logger(__name__)
rate_limited = RateLimitedLogger(log)

cdef enum:
    READ_SIZE = 131072  # bytes of one read
    BULK_SIZE = 262144  # bytes of one read if there is more and the other side keeps up: 12 % less CPU per MiB

cdef enum Reason:  # why a side is not read
    BACKLOG = 1  # bytes for the other side are unsent
    IN_FLIGHT = 2  # the client has too many open requests
    DRAIN = 4  # the process drains, and the client has no request open
    SENDING_FAILED = 8  # sending to the other side has failed
    ANSWERS = 16  # the client does not read the responses of the sidecar itself, or waits for one
    MEMORY = 64  # clients make the process hold too much memory
    HELD = 128  # its principal connects too fast
    ROUND_ROBIN = 32  # input that was already read waits for its turn in ``RoundRobin``
    TLS_HELD = 256  # the same of input that is not decrypted yet
    TLS_OUTPUT = 512  # the peer does not read what its TLS messages are answered with

cdef uint8_t[BULK_SIZE] chunk  # shared by all relays of the loop's thread; used up within one callback

EOF_CAUSES = ("client_closed", "broker_closed")
RESET_CAUSES = ("client_reset", "broker_reset")

cdef Py_ssize_t SCARCE_CHUNK = budget.SCARCE_CHUNK
cdef double IDLE_AFTER = 1  # seconds without a byte after which a connection without a session counts as drained
cdef double LINGER_TIME = 10  # seconds that a closed side has to accept unsent bytes; then it is aborted


cdef inline double monotonic() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec + now.tv_nsec * 1e-9


include "relay_side.pxi"


@cython.final
cdef class Relay(Watched):
    """Both sides of one connection. relay.pyi documents the public methods."""

    cdef readonly object counters
    cdef readonly object first_eof
    cdef readonly int64_t received_bytes  # from the client
    cdef readonly int64_t sent_bytes  # to the client
    cdef object initial_connection
    cdef int64_t requests_before  # requests of a session that was abandoned
    cdef public object on_finished
    cdef object on_closed
    cdef object on_given_up
    cdef object cause
    cdef Poller poller  # None before it is attached
    cdef object received
    cdef readonly Session session
    cdef End client
    cdef End broker
    cdef object deferred  # the DeferredRequest that is served; mostly None
    cdef object deferred_slots
    cdef bint draining
    cdef readonly double last_byte_at

    def __init__(self, connection, Session session, counters, on_closed, on_finished, on_given_up, deferred_slots):
        self.initial_connection = connection
        self.session = session
        self.counters = counters
        self.received = counters.received
        self.on_closed = on_closed
        self.on_finished = on_finished
        self.on_given_up = on_given_up
        self.deferred_slots = deferred_slots
        self.client = End(False)
        self.broker = End(True)
        self.last_byte_at = monotonic()

    @property
    def id(self):
        return self.initial_connection.id

    @property
    def connection(self):
        return self.initial_connection if self.session is None else self.session.connection

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
    def is_drained(self):
        if self.client.unsent != NULL or self.broker.unsent != NULL or self.client.paused & TLS_HELD:
            return False
        return monotonic() - self.last_byte_at > IDLE_AFTER if self.session is None else self.session.is_idle

    @property
    def is_finished(self):
        return self.client.fd < 0 and self.broker.fd < 0

    def unsent(self, side):
        cdef End end = self.client if side == "client" else self.broker
        return end.size - end.sent

    def descriptor(self, side):
        return self.client.fd if side == "client" else self.broker.fd

    def identify(self, connection, Session session):
        self.initial_connection = connection
        self.session = session

    def attach(self, client, int broker, TlsStream client_tls=None, TlsStream broker_tls=None):
        self.client.fd = client.detach()
        self.broker.fd = broker
        self.client.tls = client_tls
        self.broker.tls = broker_tls
        self.poller = poller_of(asyncio.get_running_loop())
        self.poller.add(self)
        try:
            wait_if_held(self, self.broker)
            self.update_events(self.broker)
            take_first_request(self)
            self.update_events(self.client)
        except OSError:
            self.abort()
            raise

    def stop_reading_requests(self):
        self.draining = True
        if self.session is not None and self.session.has_no_partial_request():
            self.pause(self.client, DRAIN)

    def hold_client(self, double seconds):
        if self.cause is not None:
            return
        try:
            self.pause(self.client, HELD)
        except Exception as error:
            self.close_on_bug(self.client, error)
        self.poller.loop.call_later(seconds, self.end_hold)

    def end_hold(self):
        try:
            if self.cause is None:
                self.resume(self.client, HELD)
        except Exception as error:
            self.close_on_bug(self.client, error)

    def abort(self):
        self.close_end(self.client)
        self.close_end(self.broker)
        if self.on_finished is not None:
            self.on_finished(self)

    def close(self, cause, detail="", *, bint abort=False):
        cdef End end
        if self.cause is not None:
            return
        self.cause = cause
        for end in (self.client, self.broker):
            if end.tls is not None and not abort:
                write_close_notify(self, end)
            if abort or end.unsent == NULL:
                self.close_end(end)
            else:
                self.update_events(end)
        if not self.is_finished:
            self.poller.loop.call_later(LINGER_TIME, self.abort)
        if self.session is not None:
            self.session.end_all(monotonic())
        if self.deferred is not None:
            self.deferred.cancel()
            self.deferred = None
        self.on_closed(self, cause, detail)

    def call_broker(self, bytes frame):
        call_broker(self, frame)

    def answer_deferred(self, answer):
        answer_deferred(self, answer)

    # ---- events -------------------------------------------------------------------------------------------------

    cdef int on_event(self, bint of_broker, uint32_t events) except -1:
        """Handle the epoll events of one side. Exceptions are logged here, since no caller could handle them."""
        cdef End end = self.broker if of_broker else self.client
        try:
            if events & EPOLLOUT and end.unsent != NULL:
                self.on_writable(end)
            if events & ~EPOLLOUT and end.registered_events & EPOLLIN:
                self.on_readable(end)
            elif events & ~(EPOLLIN | EPOLLOUT) and end.unsent != NULL:
                self.on_writable(end)
        except Exception as error:
            self.close_on_bug(end, error)
        return 0

    cdef int close_on_bug(self, End end, error) except -1:
        """Log an unexpected exception of this process and abort the connection."""
        log.error("relay_failed", connection_id=self.id, error=type(error).__name__, exc_info=error)
        self.close(RESET_CAUSES[end.is_broker], str(error), abort=True)
        return 0

    cdef int on_readable(self, End end) except -1:
        """Read a chunk from this side and forward it."""
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
                return self.on_eof(end)
            return self.on_socket_failure(end, end.failure or errno)
        end.bulk = size == most
        if end.tls is not None:
            return on_ciphertext(self, end, size, chunk)
        return self.on_data(end, size, chunk)

    cdef int on_data(self, End end, Py_ssize_t size, const uint8_t *data) except -1:
        """Count a chunk that this side has sent, and forward it."""
        self.received[end.name] = self.received[end.name] + size
        if not end.is_broker:
            self.received_bytes += size
        self.last_byte_at = monotonic()
        if end.is_broker and self.deferred is not None:
            return read_call(self, size, data)
        self.forward(end, size, data)
        return 0 if end.is_broker else self.schedule_rest()

    cdef int forward(self, End end, Py_ssize_t size, const uint8_t *data) except -1:
        """Forward a chunk of this side to the other side, in the order header, forward, bodies."""
        cdef Session session = self.session
        cdef End other = self.other(end)
        cdef bint bodies = False
        if session is None:
            self.write(other, size, data)
        else:
            try:
                bodies = session.read(end.is_broker, data, size, self.last_byte_at)
            except PeerError as error:
                self.close_for_invalid_frame(end, error, data)
                return 0
            except Exception as error:
                self.abandon_session(error)
                if self.cause is not None:
                    return 0
                session = None
            if session is not None and session.diverted:
                self.write_intercepted(end, size, data)
            else:
                self.write(other, size, data)
            if bodies:
                session.read_bodies(monotonic())
        if session is not None and session.must_pause_reading(end.is_broker):
            self.wait_for_memory(end)
        if other.failure and not end.paused & SENDING_FAILED:
            self.on_send_failure(other)
        elif end.failure and not other.paused & SENDING_FAILED:
            self.on_send_failure(end)
        elif session is None:
            pass
        elif end.is_broker:
            if self.client.paused & IN_FLIGHT and not session.is_saturated():
                self.resume(self.client, IN_FLIGHT)
        else:
            if session.is_saturated():
                self.pause(end, IN_FLIGHT)
            if self.draining and session.has_no_partial_request():
                self.pause(end, DRAIN)
        return self.update_answer_pause()

    cdef int wait_for_memory(self, End end) except -1:
        if not end.paused & MEMORY:
            self.session.account.budget.add_waiter(
                self.broker_memory_available if end.is_broker else self.client_memory_available
            )
        return self.pause(end, MEMORY)

    def client_memory_available(self):
        return self.resume_after_memory(self.client)

    def broker_memory_available(self):
        return self.resume_after_memory(self.broker)

    cdef bint resume_after_memory(self, End end) except -1:
        """Read this side again, since there is memory. Returns whether it was paused for memory."""
        cdef bint waited = end.paused & MEMORY and self.cause is None
        if waited:
            self.resume(end, MEMORY)
        return waited

    cdef int schedule_rest(self) except -1:
        if self.cause is None and not self.client.paused & ~TLS_HELD and self.keeps_rest():
            self.pause(self.client, ROUND_ROBIN)
            self.poller.round_robin.schedule(self.forward_rest)
        return 0

    cdef inline bint keeps_rest(self):
        return self.session is not None and self.session.keeps_rest()

    cdef bint waits_for_answers(self):
        """Whether the client is not read before what it has sent is answered."""
        return self.session is not None and (self.session.full or self.session.keeps_rest())

    def forward_rest(self):
        cdef bytes rest
        cdef bint there = self.keeps_rest() and self.cause is None
        try:
            if there and self.client.paused & ~TLS_HELD == ROUND_ROBIN:
                rest = self.session.interception.rest
                self.forward(self.client, PyBytes_GET_SIZE(rest), <const uint8_t *>PyBytes_AS_STRING(rest))
                if self.client.paused & ~TLS_HELD == ROUND_ROBIN and self.keeps_rest():
                    self.poller.round_robin.schedule(self.forward_rest)
                    return
            self.resume(self.client, ROUND_ROBIN)
        except Exception as error:
            self.close_on_bug(self.client, error)

    cdef int on_writable(self, End end) except -1:
        """Send unsent bytes; once all of them are sent, resume what was paused for them."""
        cdef ssize_t sent = send(end.fd, end.unsent + end.sent, end.size - end.sent, MSG_NOSIGNAL)
        if sent < 0:
            if errno != EAGAIN and errno != EINTR:
                end.failure = errno
                self.on_send_failure(end)
            return 0
        end.sent += sent
        if end.sent < end.size:
            return 0
        self.discard_unsent(end)
        if self.cause is not None:
            return self.finish_end(end)
        self.update_events(end)
        if end.shutdown_after_send:
            shutdown(end.fd, SHUT_WR)
        if end.paused & TLS_OUTPUT:
            self.resume(end, TLS_OUTPUT)
        self.resume(self.other(end), BACKLOG)
        return self.update_answer_pause()

    def open_held_of_client(self):
        open_held(self, self.client)

    def open_held_of_broker(self):
        open_held(self, self.broker)

    # ---- helpers ------------------------------------------------------------------------------------------------

    cdef inline End other(self, End end):
        return self.client if end.is_broker else self.broker

    cdef int write(self, End end, Py_ssize_t size, const uint8_t *data) except -1:
        """Send ``data`` to ``end``, and keep the bytes that the kernel does not accept."""
        if end.failure:
            return 0
        if end.tls is not None:
            return write_sealed(self, end, size, data)
        return self.send_or_keep(end, size, data, size)

    cdef int send_or_keep(self, End end, Py_ssize_t size, const uint8_t *data, Py_ssize_t counted) except -1:
        """Send bytes as they are, which count as ``counted``, and keep those that the kernel does not accept."""
        cdef ssize_t sent = 0
        cdef uint8_t *waiting
        if end.unsent == NULL:
            sent = send(end.fd, data, size, MSG_NOSIGNAL)
            if sent < 0 and errno != EAGAIN and errno != EINTR:
                end.failure = errno
                return 0
        if not end.is_broker:
            self.sent_bytes += counted
        if sent == size:
            return 0
        if sent < 0:
            sent = 0
        waiting = <uint8_t *>PyMem_Realloc(end.unsent, end.size + size - sent)
        if waiting == NULL:
            raise MemoryError
        memcpy(waiting + end.size, data + sent, size - sent)
        end.unsent = waiting
        end.size += size - sent
        self.update_events(end)
        return self.pause(self.other(end), BACKLOG)

    cdef int write_intercepted(self, End end, Py_ssize_t size, const uint8_t *data) except -1:
        """Send what interceptors made of a chunk of ``end``, and their responses to the client."""
        cdef Interception interception = self.session.interception
        cdef bytes edited = interception.replacement, replies = interception.replies
        if interception.failure is not None:
            report_failure(self.id, interception.failure)
        if edited is None and size:
            self.write(self.other(end), size, data)
        elif edited:
            self.write(self.other(end), PyBytes_GET_SIZE(edited), <const uint8_t *>PyBytes_AS_STRING(edited))
        if replies and not self.broker.eof:  # after that no response can be sent
            self.write(self.client, PyBytes_GET_SIZE(replies), <const uint8_t *>PyBytes_AS_STRING(replies))
        interception.release_chunk()
        return 0

    cdef int update_answer_pause(self) except -1:
        """Pause or resume the client depending on its unread responses of the sidecar, or close the connection. Serve
        a deferred request that is due.

        Called after each chunk, and when all bytes for a side have been sent.
        """
        cdef Session session = self.session
        cdef End client = self.client
        if session is None or self.cause is not None:
            return 0
        if not (session.diverted or session.pending or client.paused & ANSWERS or self.broker.eof):
            return 0
        if session.is_closing() and session.interception.ending:
            self.close(session.interception.cause)
        elif self.broker.eof and (session.pending or session.is_saturated()):  # the broker sends no more responses
            self.close(self.first_eof or EOF_CAUSES[True])
        elif session.full or (client.unsent != NULL and (session.keeps_rest() or session.interception.replied)):
            self.pause(client, ANSWERS)
            if session.full and self.deferred is None and self.cause is None:
                start_deferred(self)
        elif client.paused & ANSWERS and client.unsent == NULL:
            self.resume(client, ANSWERS)
        return 0

    cdef int on_eof(self, End end) except -1:
        """This side has shut down sending: shut down sending to the other side, and keep forwarding its bytes."""
        cdef End other = self.other(end)
        end.eof = True
        if self.first_eof is None:
            self.first_eof = EOF_CAUSES[end.is_broker]
        if other.eof:
            self.close(self.first_eof)
            return 0
        self.update_events(end)
        if other.tls is not None:
            write_close_notify(self, other)
        if other.unsent != NULL:
            other.shutdown_after_send = True
        else:
            shutdown(other.fd, SHUT_WR)
        return self.update_answer_pause()

    cdef int on_send_failure(self, End end) except -1:
        """Sending to this side has failed: stop reading the other side, and forward what this side sent before."""
        cdef End other = self.other(end)
        self.discard_unsent(end)
        if self.cause is not None or end.eof or end.paused & ~BACKLOG:
            return self.on_socket_failure(end, end.failure)
        other.paused |= SENDING_FAILED
        self.update_events(other)
        return self.update_events(end)

    cdef int on_socket_failure(self, End end, int error) except -1:
        """Close the connection because the socket of this side has failed."""
        self.discard_unsent(end)
        if self.cause is not None:
            return self.finish_end(end)
        self.close(self.first_eof or RESET_CAUSES[end.is_broker], os.strerror(error))
        return 0

    cdef int close_for_invalid_frame(self, End end, error, const uint8_t *data) except -1:
        """Close because this side sent an invalid frame. Frames before it are forwarded first."""
        cdef Session session = self.session
        if session.diverted:
            self.write_intercepted(end, session.clean, data)
            session.read_bodies(monotonic())
        elif session.clean:
            self.write(self.other(end), session.clean, data)
            session.read_bodies(monotonic())
        return self.close_for_peer_error(error)

    cdef int close_for_peer_error(self, error) except -1:
        self.counters.invalid_frames[error.side, error.reason] += 1
        self.close(f"{error.side}_{error.reason}", error.detail)
        return 0

    cdef int abandon_session(self, error) except -1:
        """Relay this connection without its session, which has failed with a bug in this process.

        The connection is closed only if bytes would be missing otherwise.
        """
        cdef Session session = self.session
        cdef bint whole = session.is_unchanged
        self.initial_connection, self.requests_before, self.session = self.connection, session.requests, None
        self.counters.abandoned += 1
        log.error("session_abandoned", connection_id=self.id, error=type(error).__name__, exc_info=error)
        for step in (session.observe, session.close):
            try:
                step(monotonic())
            except Exception:  # noqa: S110  # the session has failed already
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
        if end.failure and reason != BACKLOG:  # no event would end this pause
            return self.on_socket_failure(end, end.failure)
        if not end.paused:
            self.counters.pauses[end.name] += 1
        end.paused |= reason
        return self.update_events(end)

    cdef int resume(self, End end, Reason reason) except -1:
        end.paused &= ~reason
        if end.paused == TLS_HELD:
            schedule_held(self, end)
        self.update_events(end)
        return 0 if end.is_broker else self.schedule_rest()

    cdef int update_events(self, End end) except -1:
        """Register this side for the epoll events that are wanted now."""
        cdef uint32_t events = 0
        if end.fd < 0:
            return 0
        if self.cause is None and not end.eof and not end.paused:
            events = EPOLLIN
        if end.unsent != NULL:
            events |= EPOLLOUT
        return self.register(end, events)

    cdef int register(self, End end, uint32_t events) except -1:
        if events == end.registered_events:
            return 0
        self.poller.set_events(self, end.is_broker, end.fd, end.registered_events, events)
        end.registered_events = events
        return 0

    cdef int discard_unsent(self, End end) except -1:
        PyMem_Free(end.unsent)
        end.unsent = NULL
        end.sent = end.size = 0
        return 0

    cdef int finish_end(self, End end) except -1:
        """Close a side that still had unsent bytes when ``close`` was called."""
        self.close_end(end)
        if self.is_finished:
            self.on_finished(self)
        return 0

    cdef object detach_end(self, End end):
        """Return the socket of a side, which leaves this relay as it is."""
        cdef int fd = end.fd
        self.register(end, 0)
        end.fd = -1
        if self.is_finished:
            self.poller.remove(self)
        detached = socket.socket(fileno=fd)
        detached.setblocking(False)
        return detached

    cdef int close_end(self, End end) except -1:
        self.discard_unsent(end)
        if end.fd >= 0:
            self.register(end, 0)  # close(2) does not remove it while another process has it open
            close_descriptor(end.fd)
            end.fd = -1
            if self.is_finished:
                self.poller.remove(self)
        return 0


include "relay_tls.pxi"
include "relay_deferred.pxi"


cdef int report_failure(connection_id, error) except -1:
    """Log that an interceptor raised ``error``; its request or response was forwarded unchanged."""
    # Only text: a rate-limited log line is kept for a while, and a traceback would keep message bodies alive.
    rate_limited.warning("intercept_failed", connection_id=connection_id, error=f"{type(error).__name__}: {error}")
    return 0
