"""The IO of the sidecar: the only folder that owns sockets, timers and signals.

acceptor.py    one listening socket: its own accept loop, pausable, honest about running out of descriptors.
relay.py       one client connection: two transports, back-pressure, half-close, one named cause at the end.
sidecar.py     all of it together: start, flush timers, drain.
identity.py    whether the broker behind a listener is the right one, and sends its clients here.
admin.py       /metrics, /livez, /readyz on loopback.
"""
