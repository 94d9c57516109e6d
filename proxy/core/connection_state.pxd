# cython: language_level=3
cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from proxy.compiled.exchange cimport DecodeCode, Exchange, Kind, OutcomeCode
from proxy.compiled.walk cimport kind_of, new_feed
from proxy.core.account cimport Account
from proxy.core.header cimport (
    MORE, acks_at, after_client_id, is_flexible, is_known, least_header, peek, skip_tags, token_size,
)
from proxy.core.interception cimport Interception
from proxy.core.memory cimport count_api, equals, int16_at, int32_at, sliced
from proxy.core.observation cimport BodyCapture, Observation, identifies
from proxy.core.produce_scan cimport ProduceScan

cdef enum:
    REQUEST_AGAIN = -5
    API_VERSIONS = 18

cdef int64_t min_frame
cdef int keys, versions, want_facts, want_response_body, unknown_version
cdef bytes next_states, actions
cdef int events, requests_state, tokens_state, requests_kept_state, tokens_kept_state, closing_state, ended_state
cdef int request_event, token_event, close_event, unasked_event, lost_event
cdef int read_action

@cython.final
@cython.no_gc
cdef class Direction:
    cdef int64_t left, enough
    cdef bytearray carry
    cdef Exchange exchange
    cdef BodyCapture capture
    cdef object frame
    cdef ProduceScan scan

    cdef forget(self)

@cython.no_gc  # refers to nothing that refers back
cdef class ConnectionState:
    cdef readonly Account account
    cdef readonly object client_id
    cdef readonly Interception interception
    cdef readonly int64_t requests, clean
    cdef readonly bint diverted
    cdef object known_as, topics, held
    cdef object requests_by_key, responses_by_key, decoded
    cdef Observation observation
    cdef Direction client, broker
    cdef Exchange first, last  # of the open exchanges, which are linked in their order
    cdef bytes client_id_raw, whole
    cdef bytearray table
    cdef int64_t max_frame, open, consecutive
    cdef bint pending, full, touched
    cdef readonly int state

    @cython.locals(entry=int)
    cdef int advance(self, int event) noexcept
    cdef bint has_ended(self) noexcept
    cdef bint reads_tokens(self) noexcept
    cdef bint keeps_rest(self) noexcept
    cdef bint is_closing(self) noexcept
    @cython.locals(exchange=Exchange, exchanges=list)
    cdef list open_exchanges(self)
    cdef bint must_pause_reading(self, bint response) except -1
    cdef bint has_no_partial_request(self) noexcept
    cdef int interceptor_flags(self, int key, int version) except -1
    cdef int enqueue(self, Exchange exchange) noexcept
    @cython.locals(exchange=Exchange)
    cdef int dequeue(self) noexcept
    @cython.locals(key=int16_t, version=int16_t)
    cdef int64_t read_token(self, const uint8_t *buf, int64_t at, int64_t limit, int64_t shift, const uint8_t *data, int64_t end, double now) except -1
    cdef int64_t read_token_response(self, const uint8_t *buf, int64_t at, int64_t limit, int64_t shift, const uint8_t *data, int64_t end, double now) except -1
    @cython.locals(size=int64_t, capture=BodyCapture)
    cdef int64_t pass_token(self, bint response, const uint8_t *buf, int64_t at, int64_t shift, const uint8_t *data, int64_t end, double now) except -1
    @cython.locals(state=Direction, observation=Observation, start=int64_t, first=int64_t, ended=bint, upto=int64_t, lead=bytes)
    cdef int64_t begin_body(self, bint response, Exchange exchange, object frame, Kind kind, BodyCapture capture, const uint8_t *buf, int64_t at, int64_t body, int64_t stop, int64_t shift, const uint8_t *data, int64_t end, double now) except -1
    @cython.locals(last=bint, taken=int64_t, exchange=Exchange, capture=BodyCapture, whole=bytes)
    cdef int64_t read_body(self, bint response, Direction state, const uint8_t *data, int64_t end, double now) except -1
    cdef int scan_topics(self, Direction state, Exchange exchange, const uint8_t *data, int64_t size) except -1
    cdef int await_end(self, Exchange exchange) noexcept
    cdef int end_frame(self, bint response, Exchange exchange, const uint8_t *data, int64_t end, int64_t stop, double now) except -1
    cdef int release(self, Exchange exchange) except -1
    cdef int read_bodies(self, double now) except -1
    @cython.locals(ended=list, exchange=Exchange)
    cdef int end_all(self, double now) except -1
    cdef int settle(self, bint response, const uint8_t *data, int64_t end, int64_t upto) except -1
    cdef bytes chunk(self, const uint8_t *data, int64_t end)
    cdef int follow_interception(self) except -1
    @cython.locals(exchange=Exchange, answer=bytes, key=int, version=int, kind=Kind, capture=BodyCapture, body=int64_t)
    cdef int send_responses(self, bytes data, int64_t at) except -1
