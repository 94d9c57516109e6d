# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Accepts clients, and connects to a broker on this machine, in as few system calls as possible. See sockets.pyi."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.errno cimport EAGAIN, EINPROGRESS, EINTR, EISCONN, errno
from libc.stdint cimport uint8_t
from libc.string cimport memset
from posix.unistd cimport close as close_descriptor

import fcntl
import os

cdef extern from "<sys/socket.h>" nogil:
    ctypedef unsigned int socklen_t
    struct sockaddr:
        unsigned short sa_family
    struct sockaddr_storage:
        unsigned short ss_family
    int AF_INET
    int AF_INET6
    int SOCK_STREAM
    int SOCK_NONBLOCK
    int SOCK_CLOEXEC
    int accept4(int fd, sockaddr *address, socklen_t *size, int flags)
    int connect(int fd, const sockaddr *address, socklen_t size)
    ssize_t recv_from "recv"(int fd, void *buffer, size_t size, int flags)
    int getsockopt(int fd, int level, int option, void *value, socklen_t *size)
    int setsockopt(int fd, int level, int option, const void *value, socklen_t size)
    int open_socket "socket"(int family, int kind, int protocol)

cdef extern from "<netinet/in.h>" nogil:
    struct in_addr:
        pass
    struct in6_addr:
        pass
    struct sockaddr_in:
        unsigned short sin_port
        in_addr sin_addr
    struct sockaddr_in6:
        unsigned short sin6_port
        in6_addr sin6_addr
    int IPPROTO_TCP

cdef extern from "<netinet/tcp.h>" nogil:
    int TCP_ESTABLISHED
    int TCP_INFO
    int TCP_NODELAY

cdef extern from "<arpa/inet.h>" nogil:
    const char *inet_ntop(int family, const void *address, char *text, socklen_t size)
    int inet_pton(int family, const char *text, void *address)
    unsigned short ntohs(unsigned short number)
    unsigned short htons(unsigned short number)

cdef enum:
    TEXT_SIZE = 64  # bytes of an address as text, at most


@cython.final
@cython.no_gc
cdef class AcceptedSocket:
    cdef int fd  # −1 once it is closed, or detached

    def __cinit__(self, int fd):
        self.fd = fd

    def __dealloc__(self):
        if self.fd >= 0:
            close_descriptor(self.fd)

    def fileno(self):
        return self.fd

    def detach(self):
        cdef int fd = self.fd
        self.fd = -1
        return fd

    def close(self):
        if self.fd >= 0:
            close_descriptor(self.fd)
            self.fd = -1

    def dup(self):
        return AcceptedSocket(fcntl.fcntl(self.fd, fcntl.F_DUPFD_CLOEXEC, 0))

    def recv(self, Py_ssize_t size, int flags=0):
        cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
        cdef ssize_t got = recv_from(self.fd, PyBytes_AS_STRING(data), size, flags)
        if got < 0:
            raise OSError(errno, os.strerror(errno))
        return data[:got]

    def is_closed_by_peer(self):
        cdef uint8_t state = TCP_ESTABLISHED  # the first field of ``struct tcp_info``
        cdef socklen_t size = sizeof(state)
        return getsockopt(self.fd, IPPROTO_TCP, TCP_INFO, &state, &size) == 0 and state != TCP_ESTABLISHED


def accept(int listening):
    cdef sockaddr_storage address
    cdef socklen_t size = sizeof(address)
    cdef char text[TEXT_SIZE]
    cdef int fd = accept4(listening, <sockaddr *>&address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC)
    if fd < 0:
        if errno == EAGAIN or errno == EINTR:
            return None
        raise OSError(errno, os.strerror(errno))
    accepted = AcceptedSocket.__new__(AcceptedSocket, fd)
    if address.ss_family == AF_INET:
        host = ipv4_text(<const uint8_t *>&(<sockaddr_in *>&address).sin_addr)
        return accepted, (host, ntohs((<sockaddr_in *>&address).sin_port))
    inet_ntop(AF_INET6, &(<sockaddr_in6 *>&address).sin6_addr, text, TEXT_SIZE)
    return accepted, ((<bytes>text).decode("ascii"), ntohs((<sockaddr_in6 *>&address).sin6_port))


cdef str ipv4_text(const uint8_t *numbers):
    """Return an address as ``inet_ntop`` does, which takes a thousand instructions for it."""
    cdef char text[16]
    cdef char *at = text
    cdef int n
    for n in range(4):
        if n:
            at[0] = b"."
            at += 1
        if numbers[n] >= 100:
            at[0] = 48 + numbers[n] // 100
            at += 1
        if numbers[n] >= 10:
            at[0] = 48 + numbers[n] // 10 % 10
            at += 1
        at[0] = 48 + numbers[n] % 10
        at += 1
    return PyUnicode_DecodeASCII(text, at - text, NULL)


@cython.final
cdef class NearBroker:
    cdef sockaddr_storage address
    cdef socklen_t size
    cdef int family

    def __init__(self, str host, int port):
        cdef bytes text = host.encode("ascii")
        cdef bint known
        memset(&self.address, 0, sizeof(self.address))
        self.family = AF_INET6 if ":" in host else AF_INET
        self.address.ss_family = self.family
        if self.family == AF_INET:
            self.size = sizeof(sockaddr_in)
            (<sockaddr_in *>&self.address).sin_port = htons(port)
            known = inet_pton(AF_INET, text, &(<sockaddr_in *>&self.address).sin_addr) == 1
        else:
            self.size = sizeof(sockaddr_in6)
            (<sockaddr_in6 *>&self.address).sin6_port = htons(port)
            known = inet_pton(AF_INET6, text, &(<sockaddr_in6 *>&self.address).sin6_addr) == 1
        if not known:
            raise ValueError(f"no IP address: {host}")

    def connect_at_once(self):
        cdef int on = 1
        cdef int fd = open_socket(self.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP)
        if fd < 0:
            return -1
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on))
        if connect(fd, <sockaddr *>&self.address, self.size) == 0:
            return fd
        # Asked again, the kernel says whether it has established the connection meanwhile.
        if errno == EINPROGRESS and (connect(fd, <sockaddr *>&self.address, self.size) == 0 or errno == EISCONN):
            return fd
        close_descriptor(fd)
        return -1
