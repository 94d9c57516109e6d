# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Accepts clients, and connects to a broker on this machine, in as few system calls as possible. See sockets.pyi."""

cimport cython
from libc.errno cimport EAGAIN, EINPROGRESS, EINTR, EISCONN, errno
from libc.string cimport memset
from posix.unistd cimport close as close_descriptor

import os
import socket

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
    int TCP_NODELAY

cdef extern from "<arpa/inet.h>" nogil:
    const char *inet_ntop(int family, const void *address, char *text, socklen_t size)
    int inet_pton(int family, const char *text, void *address)
    unsigned short ntohs(unsigned short number)
    unsigned short htons(unsigned short number)

cdef enum:
    TEXT_SIZE = 64  # bytes of an address as text, at most

cdef object new_socket = socket.socket
cdef object inet = socket.AF_INET, inet6 = socket.AF_INET6, stream = socket.SOCK_STREAM


def accept(int listening):
    cdef sockaddr_storage address
    cdef socklen_t size = sizeof(address)
    cdef char text[TEXT_SIZE]
    cdef bint is_inet
    cdef int fd = accept4(listening, <sockaddr *>&address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC)
    if fd < 0:
        if errno == EAGAIN or errno == EINTR:
            return None
        raise OSError(errno, os.strerror(errno))
    is_inet = address.ss_family == AF_INET
    if is_inet:
        inet_ntop(AF_INET, &(<sockaddr_in *>&address).sin_addr, text, TEXT_SIZE)
        port = ntohs((<sockaddr_in *>&address).sin_port)
    else:
        inet_ntop(AF_INET6, &(<sockaddr_in6 *>&address).sin6_addr, text, TEXT_SIZE)
        port = ntohs((<sockaddr_in6 *>&address).sin6_port)
    return new_socket(inet if is_inet else inet6, stream, 0, fd), ((<bytes>text).decode("ascii"), port)


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
