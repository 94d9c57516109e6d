# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The TLS handshake of one connection, before its relay begins. tls_handshake.pyi documents the public methods.

What a peer has sent is one step, up to the half millisecond of an RSA signature; its end is one, too. In one iteration
of the event loop there is one step at most that begins at once, and one of those that wait in ``RoundRobin``. So a
storm of handshakes delays the requests of other connections by two steps at most.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t

from proxy.net.poller cimport EPOLLIN, EPOLLOUT, Poller, Watched, poller_of
from proxy.net.tls_stream cimport TlsStream

import asyncio
import os

import structlog

log = structlog.get_logger(__name__)

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int fd, void *buffer, size_t size, int flags)
    ssize_t send(int fd, const void *buffer, size_t size, int flags)
    int MSG_NOSIGNAL

cdef extern from "<sys/ioctl.h>" nogil:
    int ioctl(int fd, unsigned long request, int *value)
    unsigned long FIONREAD

cdef enum:
    MAX_RECEIVED = 16384  # bytes of one step; a longer certificate chain takes several

cdef char[MAX_RECEIVED] chunk  # shared by all handshakes of the loop's thread; used up within one callback


@cython.final
cdef class TlsHandshake(Watched):
    cdef readonly object sock
    cdef TlsStream stream
    cdef object on_end  # None once it has ended
    cdef Poller poller
    cdef int fd
    cdef uint32_t registered_events
    cdef bint waits_for_turn
    cdef bint begun  # by the first step of a side that sends first
    cdef bytes unsent  # what the kernel has not accepted yet; None for nothing

    def __init__(self, TlsStream stream, sock, on_end):
        self.stream = stream
        self.sock = sock
        self.fd = sock.fileno()
        self.on_end = on_end
        self.poller = poller_of(asyncio.get_running_loop())

    @property
    def is_late(self):
        cdef int count = 0
        if self.unsent is not None:
            return False
        if self.waits_for_turn:
            return True
        ioctl(self.fd, FIONREAD, &count)
        return count > 0

    def start(self):
        self.poller.add(self)
        self.begun = self.stream.side == "client"
        if self.begun:
            self.want(EPOLLIN)
        else:
            self.wait_for_turn()

    def abort(self):
        if self.on_end is not None:
            self.on_end = None
            self.want(0)
            self.poller.remove(self)

    def take_turn(self):
        """Called by ``RoundRobin``."""
        self.waits_for_turn = False
        try:
            if self.on_end is not None:
                self.take_step()
        except Exception as error:
            self.end(error)

    cdef int on_event(self, bint second, uint32_t events) except -1:
        try:
            if self.on_end is None:
                pass
            elif self.unsent is not None:
                self.send(self.unsent)
            elif self.waits_for_turn:
                pass
            elif self.poller.handshake_stepped or self.poller.round_robin.is_busy:
                self.want(0)
                self.wait_for_turn()
            else:
                self.poller.handshake_stepped = True
                self.take_step()
        except Exception as error:
            self.end(error)
        return 0

    cdef int wait_for_turn(self) except -1:
        self.waits_for_turn = True
        self.poller.round_robin.schedule(self.take_turn)
        return 0

    cdef int take_step(self) except -1:
        cdef bytes received = b"", output
        cdef ssize_t size
        if self.begun:
            size = recv(self.fd, chunk, MAX_RECEIVED, 0)
            if size < 0 and (errno == EAGAIN or errno == EINTR):
                return self.want(EPOLLIN)
            if size < 0:
                raise OSError(errno, os.strerror(errno))
            if size == 0:
                raise EOFError
            received = PyBytes_FromStringAndSize(chunk, size)
        self.begun = True
        output = self.stream.shake_hands(received)
        return self.send(output) if output else self.after_step()

    cdef int send(self, bytes output) except -1:
        cdef ssize_t sent = send(self.fd, PyBytes_AS_STRING(output), PyBytes_GET_SIZE(output), MSG_NOSIGNAL)
        if sent < 0 and errno != EAGAIN and errno != EINTR:
            raise OSError(errno, os.strerror(errno))
        if sent == PyBytes_GET_SIZE(output):
            self.unsent = None
            return self.after_step()
        self.unsent = output[sent:] if sent > 0 else output
        return self.want(EPOLLOUT)

    cdef int after_step(self) except -1:
        self.stream.check()
        if self.stream.established:
            return self.end(None)
        return self.want(EPOLLIN)

    cdef int want(self, uint32_t events) except -1:
        """Wait for these epoll events."""
        if events != self.registered_events:
            self.poller.set_events(self, False, self.fd, self.registered_events, events)
            self.registered_events = events
        return 0

    cdef int end(self, error) except -1:
        cdef object on_end = self.on_end
        self.abort()
        if on_end is not None:
            try:
                on_end(error)
            except Exception as failure:  # no caller could handle it
                log.error("handshake_end_failed", error=type(failure).__name__, exc_info=failure)
        return 0
