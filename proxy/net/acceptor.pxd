# cython: language_level=3

cdef class Acceptor:
    cdef readonly object socket
    cdef readonly bint accepting
    cdef object _counters, _on_accept, _on_out_of_capacity, _free_connections, _loop, _retry
