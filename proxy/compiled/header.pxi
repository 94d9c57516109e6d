# Part of session.pyx: what is known of every api, the flags that are wanted of each, and what a session reads of a
# frame before its body: sizes, and what stands first in a response. Each takes the frame as far as it is there. Tagged
# fields and the ``acks`` of a Produce: header.pxd.

cdef int MAX_TOKEN = session.MAX_TOKEN
cdef int THROTTLE_FIRST = watch.THROTTLE_FIRST
cdef int ERROR_FIRST = watch.ERROR_FIRST
cdef int ERROR_AFTER_THROTTLE = watch.ERROR_AFTER_THROTTLE
cdef int PEEKED = THROTTLE_FIRST | ERROR_FIRST | ERROR_AFTER_THROTTLE  # what ``peek`` reads
cdef int DECIDED = intercept.DECIDED
cdef int ASKED = intercept.ASKED
cdef int EDITED = intercept.EDITED
cdef int LED = intercept.LED
cdef int STREAMED = intercept.STREAMED
cdef int CHECKED = intercept.CHECKED
cdef int UNREAD = intercept.UNREAD
cdef int KEYS = watch.KEYS
cdef int VERSIONS = watch.VERSIONS
cdef int TOLD = watch.TOLD
cdef int WALKED = watch.WALKED
cdef int KEEP_REQUEST = watch.KEEP_REQUEST
cdef int KEEP_RESPONSE = watch.KEEP_RESPONSE

cdef enum:
    REQUEST_AGAIN = -5  # of ``token``
    NEVER = 32768  # a version after all others
    APIS = 128  # api keys that the table below has room for

cdef enum ApiKey:
    PRODUCE = 0
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    SASL_AUTHENTICATE = 36

cdef struct Api:  # of proxy.core.apis
    bint exists
    int oldest
    int newest
    int flexible_since

cdef Api[APIS] table
for key, api in apis.APIS.items():
    if not 0 <= key < APIS:
        raise ValueError(f"api key {key} is outside of the table")
    table[key].exists = True
    table[key].oldest, table[key].newest = api.min_version, api.max_version
    table[key].flexible_since = NEVER if api.flexible_since is None else api.flexible_since


cdef inline bint is_known(int key, int version) noexcept:
    return 0 <= key < APIS and table[key].exists and table[key].oldest <= version <= table[key].newest


cdef inline bint is_flexible(int key, int version) noexcept:
    return 0 <= key < APIS and table[key].exists and version >= table[key].flexible_since


cdef Py_ssize_t after_client_id(int64_t size, int length) except -1:
    """Return the offset after the client id of ``length`` bytes, in a frame of ``size``. Raises PeerError."""
    if length < -1:
        raise PeerError("client", "invalid_header", f"client id length {length}")
    if length > size - 10:
        raise PeerError("client", "invalid_header", f"client id of {length} bytes in a frame of {size}")
    return 14 + (length if length > 0 else 0)


cdef int64_t token_size(bint response, const uint8_t *p) except -1:
    """Read the size of the raw SASL token whose frame begins at ``p``. Raises PeerError for one out of bounds."""
    cdef int64_t size = int32_at(p)
    if not 0 <= size <= MAX_TOKEN:
        raise PeerError(SIDES[response], "invalid_size", f"SASL token of {size} bytes; allowed: 0 to {MAX_TOKEN}")
    return size


cdef bint peek(
    Exchange exchange, uint8_t flags, const uint8_t *p, Py_ssize_t body, Py_ssize_t there, int64_t frame
) noexcept:
    """Read what stands first in the response. Returns False where it may yet come."""
    cdef int need = 6 if flags & ERROR_AFTER_THROTTLE else 4 if flags & THROTTLE_FIRST else 2
    if body + need > frame:
        return True
    if body + need > there:
        return False
    if flags & THROTTLE_FIRST:
        exchange.throttle_ms = int32_at(p + body)
    if flags & (ERROR_FIRST | ERROR_AFTER_THROTTLE):
        exchange.error_code = int16_at(p + body + need - 2)
    return True
