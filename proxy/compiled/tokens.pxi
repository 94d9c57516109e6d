# Part of session.pyx: raw SASL tokens. After SaslHandshake v0, tokens travel as bare frames (a size and the token) in
# both directions, until the first frame that is a request again.

cdef Py_ssize_t pass_token(
    Session self, bint response, const uint8_t *p, Py_ssize_t start, const uint8_t *data, Py_ssize_t end, double now
) except? -1:
    """Pass a token; return the offset in ``data`` after what is there of it."""
    cdef int64_t size = token_size(response, p)
    cdef Passing passing = None
    if self.told is not None and self.told.identity is not None:
        passing = new_passing(size, False, True)
    return self.begin(response, None, None, NO_WALKER, passing, p, 4, 4 + size, start, data, end, now)


cdef Py_ssize_t token(
    Session self, const uint8_t *p, Py_ssize_t there, Py_ssize_t start, const uint8_t *data, Py_ssize_t end, double now
) except? -1:
    """While tokens are exchanged, a frame of the client begins: as ``start_request``, but REQUEST_AGAIN where it is a
    request: one of a known api key and version, or one that the rules do not let pass unread."""
    if there < 4:
        return INCOMPLETE
    cdef int64_t size = token_size(False, p)
    if size >= MIN_FRAME:
        if there < 8:
            return INCOMPLETE
        unread = self.answers is not None and ruling(self, int16_at(p + 4), int16_at(p + 6)) & UNREAD
        if unread or is_known(int16_at(p + 4), int16_at(p + 6)):
            self.tokens = False
            return REQUEST_AGAIN
    return pass_token(self, False, p, start, data, end, now)


cdef Py_ssize_t token_reply(
    Session self, const uint8_t *p, Py_ssize_t there, Py_ssize_t start, const uint8_t *data, Py_ssize_t end, double now
) except? -1:
    """A frame that answers no request: right only while raw SASL tokens are exchanged."""
    if self.open or there < 4:
        return INCOMPLETE
    if not self.tokens:
        raise PeerError("broker", "out_of_sync", "a response without a request")
    return pass_token(self, True, p, start, data, end, now)
