# cython: language_level=3, boundscheck=False, wraparound=False
"""The weight of exchanges in an observer's queue. It runs on the event loop for every exchange and builds no facts."""

from cpython.bytes cimport PyBytes_GET_SIZE

from proxy.compiled.exchange cimport Body, Exchange


def queue_weight(exchanges):
    """Return the weight of ``exchanges`` in ``observer_thread.MAX_QUEUED_WEIGHT``, and the bytes of their kept bodies.

    TypeError: what is no exchange.
    """
    cdef Exchange exchange
    cdef Py_ssize_t weight = len(exchanges), kept = 0, names
    for one in exchanges:
        exchange = <Exchange?>one
        names = 0 if exchange.client_id is None else len(<str>exchange.client_id)
        if exchange.request_body != NULL and exchange.request_body.transactional_id != NULL:
            names += PyBytes_GET_SIZE(<object>exchange.request_body.transactional_id)
        if exchange.item_errors is not None:
            weight += len(exchange.item_errors.items) + len(exchange.item_errors.matching_acls)
        if exchange.resources is not None:
            weight += len(exchange.resources.items) + len(exchange.resources.commits)
        if exchange.request_raw is not None:
            kept += len(<bytes>exchange.request_raw)
        if exchange.response_raw is not None:
            kept += len(<bytes>exchange.response_raw)
        weight += parts_of(exchange.request_body, &names) + parts_of(exchange.response_body, &names) + (names >> 8)
    return weight, kept


cdef Py_ssize_t parts_of(const Body *body, Py_ssize_t *names) noexcept:
    """Return how many partitions ``body`` has, and add the length of their topics' names to ``names``."""
    cdef Py_ssize_t at, parts = 0
    if body != NULL:
        parts = body.count + body.forgotten
        for at in range(parts):
            names[0] += PyBytes_GET_SIZE(<object>body.parts[at].topic)
    return parts
