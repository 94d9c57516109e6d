from libc.stdint cimport uint8_t

cdef enum:
    OPENED_SIZE = 294912  # bytes of ``opened``: the longest chunk that is received, and a record that began before it

cdef uint8_t[OPENED_SIZE] opened  # what ``TlsStream.open`` has decrypted; used up before its next call

cdef class TlsStream:
    cdef object ssl_object
    cdef readonly bint established
    cdef bint begun  # the peer has sent something
    cdef readonly bint peer_closed
    cdef readonly str side
    cdef bytes held  # received, and not decrypted yet; None for nothing
    cdef bytes output  # to be sent to the peer, beside what ``seal`` returns; None for nothing
    cdef object failure  # the PeerError after which nothing can be received any more, or None

    cdef Py_ssize_t open(self, const uint8_t *data, Py_ssize_t size) except -1
    cdef Py_ssize_t read_records(self, Py_ssize_t filled) except -1
    cdef bytes seal(self, const uint8_t *data, Py_ssize_t size)
    cdef bytes close(self)
    cdef object fail(self, error)
