# cython: language_level=3
cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from proxy.compiled.exchange cimport DecodeCode, Exchange, Kind, OutcomeCode, new_exchange
from proxy.compiled.walk cimport kind_of, new_feed
from proxy.core.account cimport Account
from proxy.core.header cimport (
    MORE, acks_at, after_client_id, is_flexible, is_known, least_header, peek, skip_tags, token_size,
)
from proxy.core.memory cimport count, count_api, equals, int16_at, int32_at, sliced
from proxy.core.observation cimport BodyCapture, Observation, identifies
from proxy.core.produce_scan cimport ProduceScan

from proxy.core.connection_state cimport ConnectionState, Direction

cdef enum:
    REQUEST_AGAIN = -5
    PRODUCE = 0
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18

cdef int64_t max_in_flight, turn, answer_cost, max_prefix, carry_step, min_frame, first_topic
cdef int64_t exchange_bytes, client_id_bytes, max_name
cdef int chunk_event, request_event, handshake_event, keep_event, read_action, store_action
cdef int want_exchange, want_facts, want_request_body, want_response_body, peeked, on_header, on_body, on_topics, request_flags, response_flags, rewrite

@cython.final
@cython.no_gc  # refers to nothing that refers back
cdef class Session(ConnectionState):
    cdef bint is_saturated(self) noexcept
    @cython.locals(state=Direction, had=int64_t)
    cdef int read(self, bint response, const uint8_t *data, int64_t end, double now) except -1
    @cython.locals(state=Direction, carry=bytearray, pos=int64_t, frames=int64_t, start=int64_t, grown=int64_t, done=int64_t)
    cdef int64_t read_frames(self, bint response, const uint8_t *data, int64_t end, double now) except -1
    @cython.locals(
        observation=Observation, done=int64_t, size=int64_t, key=int16_t, version=int16_t, id_length=int16_t, stop=int64_t,
        body=int64_t, flags=int, wanted=int, learnt=bint, needed=bint, kind=Kind, most=int64_t, acks=int, acks_offset=int64_t,
        there=int64_t, found=int64_t, tags=int64_t, produce=int, least=int64_t, scan=ProduceScan, exchange=Exchange,
        capture=BodyCapture, raw=bytes,
    )
    cdef int64_t read_request(self, const uint8_t *buf, int64_t at, int64_t limit, int64_t shift, const uint8_t *data, int64_t end, double now) except -1
    cdef int check_size(self, int64_t size) except -1
    @cython.locals(
        exchange=Exchange, observation=Observation, size=int64_t, correlation_id=int32_t, key=int16_t, version=int16_t,
        flags=int, kind=Kind, learnt=bint, wanted=int, body=int64_t, stop=int64_t, found=int64_t, capture=BodyCapture,
        known=bytes, head=bytes,
    )
    cdef int64_t read_response(self, const uint8_t *buf, int64_t at, int64_t limit, int64_t shift, const uint8_t *data, int64_t end, double now) except -1
    @cython.locals(state=Direction, upto=int64_t)
    cdef int read_intercepted(self, bint response, const uint8_t *data, int64_t end, double now) except -1
