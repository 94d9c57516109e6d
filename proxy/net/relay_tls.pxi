# Included by relay.pyx: what a relay does differently for a side with TLS.

cdef enum:
    FIRST_REQUEST = 1024  # bytes of TLS; 38 of its smallest records, which take 0.6 ms


cdef int on_ciphertext(Relay relay, End end, Py_ssize_t size, const uint8_t *data) except -1:
    """Decrypt a chunk that this side has sent, and forward the plaintext."""
    cdef TlsStream tls = end.tls
    cdef Py_ssize_t found = tls.open(data, size)
    if tls.output is not None:
        write_tls_output(relay, end)
    if found and relay.cause is None:
        relay.on_data(end, found, opened)
    if relay.cause is not None:
        return 0
    if (tls.failure is not None or tls.peer_closed) and not end.is_broker and relay.waits_for_answers():
        tls.held = b""  # what it sent before goes first
        wait_if_held(relay, end)
    elif tls.failure is not None:
        relay.close(f"{end.name}_{tls.failure.reason}", tls.failure.detail)
    elif tls.peer_closed:
        relay.on_eof(end)
    else:
        wait_if_held(relay, end)
    return 0


cdef int wait_if_held(Relay relay, End end) except -1:
    """Do not read this side before what it has sent is decrypted."""
    if end.tls is not None and end.tls.held is not None:
        relay.pause(end, TLS_HELD)
        schedule_held(relay, end)
    return 0


cdef int take_first_request(Relay relay) except -1:
    """Relay what the client has sent behind its handshake: now, if it is little."""
    cdef TlsStream tls = relay.client.tls
    if tls is None or tls.held is None or PyBytes_GET_SIZE(tls.held) > FIRST_REQUEST:
        return wait_if_held(relay, relay.client)
    relay.client.paused |= TLS_HELD
    return open_held(relay, relay.client)


cdef int schedule_held(Relay relay, End end) except -1:
    relay.poller.round_robin.schedule(relay.open_held_of_broker if end.is_broker else relay.open_held_of_client)
    return 0


cdef int open_held(Relay relay, End end) except -1:
    """Decrypt more of what this side has sent, unless something else pauses it; then ``Relay.resume`` schedules it."""
    cdef bytes held
    try:
        if relay.cause is not None or end.paused != TLS_HELD:
            return 0
        held, end.tls.held = end.tls.held, None
        end.paused = 0
        on_ciphertext(relay, end, PyBytes_GET_SIZE(held), <const uint8_t *>PyBytes_AS_STRING(held))
        if relay.cause is None:
            relay.update_events(end)
    except Exception as error:
        relay.close_on_bug(end, error)
    return 0


cdef int write_sealed(Relay relay, End end, Py_ssize_t size, const uint8_t *data) except -1:
    """Send ``data`` to ``end`` as records."""
    cdef bytes sealed = end.tls.seal(data, size)
    return relay.send_or_keep(end, PyBytes_GET_SIZE(sealed), <const uint8_t *>PyBytes_AS_STRING(sealed), size)


cdef int write_tls_output(Relay relay, End end) except -1:
    """Send what TLS itself has to say to this side, and do not read a peer that does not read that."""
    cdef bytes output = end.tls.output
    end.tls.output = None
    if end.failure or end.fd < 0:
        return 0
    relay.send_or_keep(end, PyBytes_GET_SIZE(output), <const uint8_t *>PyBytes_AS_STRING(output), 0)
    if end.unsent != NULL and relay.cause is None:
        relay.pause(end, TLS_OUTPUT)
    return 0


cdef int write_close_notify(Relay relay, End end) except -1:
    """Send this side the end of the stream, unless that was done, or nobody reads it.

    A peer that has ended its side of the connection without ``close_notify`` has closed it, as many clients do.
    """
    if end.fd < 0 or end.failure or (end.eof and not end.tls.peer_closed):
        return 0
    end.tls.output = end.tls.close()
    return write_tls_output(relay, end) if end.tls.output else 0
