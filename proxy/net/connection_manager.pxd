# cython: language_level=3
from proxy.core.observation cimport subscribers_of
from proxy.net.connection_setup cimport SetupDeadlines

cdef class ConnectionManager:
    cdef readonly dict listener_counters, relays, by_number
    cdef public object sink
    cdef readonly object budget, listeners, _tls
    cdef set _flushing, _ending
    cdef object _config, _rate_limited, _on_connection_closed, _take_consumer, _on_logins
    cdef object _dead_peers, _lifetime
    cdef dict _connecting, _handshakes
    cdef list _logins
    cdef object _max_frame
    cdef tuple _of_relays
    cdef SetupDeadlines _setup_deadlines

    cpdef handle_connection(self, listener, sock, tuple address, int number)
    cdef _create_session(self, serving, connection, int number)
    cpdef _connect(self, relay, sock, serving, int number, tls=*)
    cdef _start_relay(self, relay, sock, int broker, int number, tls, broker_tls)
    cpdef notify_observers(self, change)
