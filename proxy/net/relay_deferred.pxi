# Included by relay.pyx: what a relay does for a deferred request.

GIVEN_UP = "given_up"  # in place of a cause; it is not counted


cdef int start_deferred(Relay relay) except -1:
    """Serve the deferred request, if it is due and all bytes before it are sent."""
    if relay.client.unsent != NULL or relay.broker.unsent != NULL:
        return 0
    due = relay.session.deferred
    if due is not None:
        relay.deferred = DeferredRequest(relay, due.serve, relay.deferred_slots)
    return 0


cdef int call_broker(Relay relay, bytes frame) except -1:
    """Send the broker a request of the sidecar's own."""
    if relay.cause is not None:
        return 0
    try:
        relay.write(relay.broker, PyBytes_GET_SIZE(frame), <const uint8_t *>PyBytes_AS_STRING(frame))
        if relay.broker.failure:
            relay.on_send_failure(relay.broker)
    except Exception as error:
        relay.close_on_bug(relay.broker, error)
    return 0


cdef int read_call(Relay relay, Py_ssize_t size, const uint8_t *data) except -1:
    """Pass a chunk of the broker to the deferred request."""
    try:
        relay.deferred.feed(<bytes>data[:size])
    except PeerError as error:
        return relay.close_for_peer_error(error)
    return relay.wait_for_memory(relay.broker) if relay.session.account.is_full() else 0


cdef int give_up(Relay relay, registration) except -1:
    """Let both sockets leave the relay, open as they are, with what the client has sent behind the request."""
    cdef bytes rest = relay.session.interception.rest
    correlation_id = relay.session.give_up(monotonic())
    relay.cause = GIVEN_UP
    client, broker = relay.detach_end(relay.client), relay.detach_end(relay.broker)
    relay.on_given_up(relay, registration, correlation_id, client, broker, rest)
    return 0


cdef int answer_deferred(Relay relay, answer) except -1:
    """Send the client the response to the deferred request, or close the connection, and serve what came after it."""
    cdef End client = relay.client
    relay.deferred = None
    if relay.cause is not None:
        return 0
    try:
        if isinstance(answer, GivenUp):
            if client.tls is None and relay.broker.tls is None:
                return give_up(relay, answer.registration)
            answer = RuntimeError("a connection with TLS cannot be given up")
        relay.last_byte_at = monotonic()
        relay.session.answer_deferred(answer)
        relay.write_intercepted(client, 0, NULL)
        relay.session.read_bodies(monotonic())
        if client.failure:
            relay.on_send_failure(client)
        relay.update_answer_pause()
    except Exception as error:
        relay.close_on_bug(client, error)
    return 0
