# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""TLS of one side of one connection: ciphertext in, plaintext out, and back. It knows no socket.

All streams of a process share one pair of memory BIOs. A stream fills and empties both within a call, so no connection
holds buffers of its own between two calls, but for OpenSSL's part of an incomplete record (16 KiB). That is sound
because OpenSSL reads ahead nothing: it takes from the BIO until a record is incomplete, and keeps that record itself.

Ciphertext is decrypted in portions of ``PORTION`` bytes or ``MAX_RECORDS`` records. A portion that holds little data
consists of tiny records, or of messages of TLS itself: a KeyUpdate has 27 bytes and costs 15 µs. Then the rest of the
chunk waits for the next turn.
"""

cimport cython
from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint8_t

import ssl

from proxy.errors import PeerError

cdef enum:
    PORTION = 16645  # bytes of the longest record of TLS 1.2 and 1.3 with its header
    MAX_RECORDS = 128
    HEADER = 5  # bytes: type, version, length
    MESSAGE_HEADER = 4  # bytes: type, length
    CHANGE_CIPHER_SPEC = 20  # a type of records
    ALERT = 21  # a type of records
    ALERT_SIZE = 2  # bytes: level, description
    HANDSHAKE = 22  # a type of records
    CLIENT_HELLO = 1  # a type of messages
    MAX_HELLO = 16384  # bytes of a ClientHello; OpenSSL's buffer for messages has that size from the beginning
    MAX_HELLO_RECORDS = 17408  # bytes of the records that hold one
    INCOMPLETE = -1
    NO_HELLO = -2
    LONG_HELLO = -3
    RANDOM_AT = 11  # the place of the random in a record with a ServerHello

cdef object incoming = ssl.MemoryBIO()
cdef object outgoing = ssl.MemoryBIO()
cdef object room = PyMemoryView_FromMemory(<char *>opened, OPENED_SIZE, PyBUF_WRITE)

HANDSHAKE_OR_ALERT = (b"\x16", b"\x15")
"""The first byte of what a broker may begin with."""

HELLO_RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
"""The random of a ServerHello that asks for another ClientHello (HelloRetryRequest). Source: RFC 8446, 4.1.3."""

NOT_TLS = {
    "client": "its first bytes are not TLS: it may have security.protocol PLAINTEXT or SASL_PLAINTEXT",
    "broker": "its first bytes are not TLS: upstream may be a port without TLS",
}


@cython.final
cdef class TlsStream:
    """TLS towards one peer. tls_stream.pyi documents the public methods."""

    def __init__(self, context, str server_name=None, TlsStream earlier=None):
        if earlier is not None and earlier.ssl_object.context is context:
            self.session = earlier.ssl_object.session
        self.side = "broker" if server_name is not None else "client"
        self.awaits_hello = server_name is None
        self.context = context
        self.server_name = server_name

    @property
    def version(self):
        return self.ssl_object.version()

    @property
    def cipher(self):
        return self.ssl_object.cipher()[0]

    @property
    def is_resumed(self):
        return self.ssl_object.session_reused

    @property
    def peer_certificate(self):
        return self.ssl_object.getpeercert(True)

    def shake_hands(self, bytes received):
        """Take bytes of the peer, and return those that are to be sent to it."""
        cdef bytes output, later = b""
        cdef Py_ssize_t end
        cdef bint first = not self.begun, is_hello = self.awaits_hello
        if is_hello:
            if self.held is not None:
                received, self.held = self.held + received, None
            end = self.end_of_hello(received)
            if end < 0:
                return b""
            received, later = received[:end], received[end:]
        if self.ssl_object is None:  # a peer that says nothing takes no memory for it
            self.ssl_object = self.context.wrap_bio(
                incoming, outgoing, self.server_name is None, self.server_name, self.session
            )
            self.context = self.session = None
        incoming.write(received)
        self.begun = self.begun or bool(received)
        try:
            self.ssl_object.do_handshake()
            self.established = True
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLError, ValueError) as error:
            self.fail(error)
            if first and received[:1] not in HANDSHAKE_OR_ALERT:
                self.failure = PeerError(self.side, "tls_failed", NOT_TLS[self.side])
        if incoming.pending and self.failure is None:
            self.held = incoming.read()  # the first request came with the end of the handshake
        if self.established and self.side == "client" and self.version == "TLSv1.3":
            self.tickets = outgoing.read()  # the client waits for an answer to its request, and not for these
            return b""
        output = outgoing.read()
        if is_hello:
            self.awaits_hello = output[RANDOM_AT : RANDOM_AT + len(HELLO_RETRY)] == HELLO_RETRY
            if later and self.failure is None:
                return output + self.shake_hands(later)
        return output

    cdef Py_ssize_t end_of_hello(self, bytes received) except -4:
        """Return where a ClientHello ends, which OpenSSL may have; if it is below 0, see ``held`` and ``failure``.

        At the header of a message OpenSSL allocates the length that it states, up to 128 KiB for a ClientHello. What
        follows a first one may be a second one, so it is looked at when OpenSSL has answered the first.
        """
        cdef int length = 0
        cdef Py_ssize_t end = find_end_of_hello(received, len(received), self.begun, &length)
        cdef Py_ssize_t size = len(received) if end == INCOMPLETE else end
        if size > MAX_HELLO_RECORDS:
            self.refuse(f"the records of its ClientHello have more than {MAX_HELLO_RECORDS} bytes")
            return INCOMPLETE
        if end == INCOMPLETE:
            self.held = received
        elif end == LONG_HELLO:
            self.refuse(f"its ClientHello has {length} bytes, more than {MAX_HELLO}")
        elif end == NO_HELLO and not self.begun and received[:1] not in HANDSHAKE_OR_ALERT:
            self.refuse(NOT_TLS[self.side])
        elif end == NO_HELLO:
            self.refuse(f"its {'next' if self.begun else 'first'} message is not a ClientHello")
        return end

    cdef object refuse(self, str detail):
        self.failure = PeerError(self.side, "tls_failed", detail)

    cdef bytes take_output(self):
        """Return what is to be sent to the peer."""
        cdef bytes tickets = self.tickets
        if tickets is None:
            return outgoing.read()
        self.tickets = None
        return tickets + outgoing.read()

    def check(self):
        """Raise what has failed."""
        if self.failure is not None:
            raise self.failure

    def decrypt(self, bytes received):
        cdef Py_ssize_t size
        if self.held is not None:
            received, self.held = self.held + received, None
        size = self.open(received, len(received))
        self.check()
        return opened[:size]

    def encrypt(self, bytes data):
        return self.seal(data, len(data))

    cdef Py_ssize_t open(self, const uint8_t *data, Py_ssize_t size) except -1:
        """Decrypt ``size`` bytes of the peer into ``opened``, and return how many these are.

        Look at ``held``, ``output``, ``failure`` and ``peer_closed`` afterwards.
        """
        cdef Py_ssize_t at = 0, filled = 0, before, portion
        while at < size and self.failure is None and not self.peer_closed:
            portion = self.portion_of(data + at, size - at)
            incoming.write(PyMemoryView_FromMemory(<char *>data + at, portion, PyBUF_READ))
            at += portion
            before = filled
            filled = self.read_records(filled)
            if filled - before < portion // 2 and at < size:
                self.held = data[at:size]
                break
        if outgoing.pending:
            self.output = self.take_output()
        return filled

    cdef Py_ssize_t portion_of(self, const uint8_t *data, Py_ssize_t size) noexcept:
        """Return how many of ``size`` bytes to decrypt at once."""
        cdef Py_ssize_t at = 0, most = min(size, <Py_ssize_t>PORTION)
        cdef int records = 0, step
        while at < most:
            if self.record_left:
                step = <int>min(<Py_ssize_t>self.record_left, most - at)
                self.record_left -= step
                at += step
                continue
            if self.header_at == 0:
                records += 1
                if records > MAX_RECORDS:
                    break
            elif self.header_at == HEADER - 2:
                self.record_length = data[at] << 8
            elif self.header_at == HEADER - 1:
                self.record_left = self.record_length | data[at]
                self.header_at = -1
            self.header_at += 1
            at += 1
        return at

    cdef Py_ssize_t read_records(self, Py_ssize_t filled) except -1:
        """Decrypt what is in ``incoming``; return how much of ``opened`` is filled now."""
        cdef Py_ssize_t size
        try:
            while True:
                size = self.ssl_object.read(OPENED_SIZE, room if not filled else room[filled:])
                if size == 0:
                    self.peer_closed = True
                    break
                filled += size
                if not incoming.pending:
                    return filled
        except ssl.SSLWantReadError:
            return filled
        except ssl.SSLZeroReturnError:
            self.peer_closed = True
        except ssl.SSLError as error:
            self.fail(error)
        incoming.read()  # what follows the end is not read
        return filled

    cdef bytes seal(self, const uint8_t *data, Py_ssize_t size):
        """Return ``data`` as records."""
        cdef Py_ssize_t at = 0
        cdef object write = self.ssl_object.write
        while at < size:
            at += write(PyMemoryView_FromMemory(<char *>data + at, size - at, PyBUF_READ))
        return self.take_output()

    cdef bytes close(self):
        """Return the record that ends what is sent to the peer; nothing if it was sent, or cannot be."""
        if not self.established:
            return b""
        try:
            self.ssl_object.unwrap()
        except (ssl.SSLError, ValueError, OSError):
            pass  # the peer has not ended its side yet
        if incoming.pending:
            incoming.read()
        return self.take_output()

    cdef object fail(self, error):
        """Note that nothing can be received any more."""
        reason = getattr(error, "verify_message", "") or getattr(error, "reason", None) or type(error).__name__
        self.failure = PeerError(self.side, "tls_failed", str(reason))
        if incoming.pending:
            incoming.read()


cdef Py_ssize_t find_end_of_hello(const uint8_t *data, Py_ssize_t size, bint again, int *length) noexcept:
    """Return how many bytes the records of a ClientHello have, which may have any length; ``length``: that it states.

    Returns ``INCOMPLETE`` before its end, ``LONG_HELLO`` where it states more than ``MAX_HELLO``, and ``NO_HELLO`` for
    other bytes: also for empty records, which RFC 8446 forbids (section 5.1), and for one in which another message
    follows. ``again``: it follows a HelloRetryRequest, so that a ChangeCipherSpec may precede it (appendix D.4), and an
    alert may come in its place; then it returns the end of that.
    """
    cdef Py_ssize_t at = 0, end, seen = 0
    while at < size:
        if size - at < HEADER:
            return INCOMPLETE if data[at] == HANDSHAKE or again and data[at] in (CHANGE_CIPHER_SPEC, ALERT) else NO_HELLO
        end = at + HEADER + (data[at + 3] << 8 | data[at + 4])
        if again and at == 0 and data[at] == CHANGE_CIPHER_SPEC and end == HEADER + 1:
            at = end
            continue
        if again and not seen and data[at] == ALERT and end == at + HEADER + ALERT_SIZE:
            return end if end <= size else INCOMPLETE  # OpenSSL gives its reason
        if data[at] != HANDSHAKE or end == at + HEADER:
            return NO_HELLO
        at += HEADER
        while at < min(end, size) and seen < MESSAGE_HEADER:
            if seen:
                length[0] = length[0] << 8 | data[at]
            elif data[at] != CLIENT_HELLO:
                return NO_HELLO
            at += 1
            seen += 1
        if seen == MESSAGE_HEADER and length[0] > MAX_HELLO:
            return LONG_HELLO
        if end > size:
            return INCOMPLETE
        seen += end - at
        at = end
        if seen == MESSAGE_HEADER + length[0]:
            return at
        if seen > MESSAGE_HEADER + length[0]:
            return NO_HELLO
    return INCOMPLETE
