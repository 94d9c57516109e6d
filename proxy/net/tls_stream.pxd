from libc.stdint cimport uint8_t

cdef enum:
    OPENED_SIZE = 294912  # bytes of ``opened``: the longest chunk that is received, and a record that began before it

cdef uint8_t[OPENED_SIZE] opened  # what ``TlsStream.open`` has decrypted; used up before its next call

cdef class TlsStream:
    cdef object ssl_object  # None before the handshake begins
    cdef object context  # None once it has begun
    cdef object session  # to be resumed, of an earlier stream; None for a full handshake, and once it has begun
    cdef str server_name
    cdef readonly bint established
    cdef bint begun  # the peer has sent something that OpenSSL got
    cdef bint awaits_hello  # OpenSSL gets a whole ClientHello next, or nothing
    cdef readonly bint peer_closed
    cdef readonly str side
    cdef int record_left  # bytes of the record that is being received which are still to come
    cdef int record_length  # the first byte of its length, shifted
    cdef int header_at  # bytes of the header of a record that have come, less than ``HEADER``
    cdef bytes held  # received, and not given to OpenSSL yet; None for nothing
    cdef bytes output  # to be sent to the peer, beside what ``seal`` returns; None for nothing
    cdef bytes tickets  # to be sent before all else that is sent to the peer; None for nothing
    cdef object failure  # the PeerError after which nothing can be received any more, or None

    cdef Py_ssize_t open(self, const uint8_t *data, Py_ssize_t size) except -1
    cdef Py_ssize_t portion_of(self, const uint8_t *data, Py_ssize_t size) noexcept
    cdef Py_ssize_t read_records(self, Py_ssize_t filled) except -1
    cdef Py_ssize_t end_of_hello(self, bytes received) except -4
    cdef object refuse(self, str detail)
    cdef bytes take_output(self)
    cdef bytes seal(self, const uint8_t *data, Py_ssize_t size)
    cdef bytes close(self)
    cdef object fail(self, error)
