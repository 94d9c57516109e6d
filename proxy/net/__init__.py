"""The IO of the sidecar: the only folder that owns sockets, timers, signals and processes.

acceptor.py    one listening socket: its own accept loop, pausable, honest about running out of descriptors.
entrance.py    accepted sockets at the gate of ``proxy.limits``: in, held, or closed, and told of.
preamble.py    PROXY headers that accepted connections begin with.
upstream.py    connections to the broker.
lookup.py      the addresses of its name, by one lookup at a time.
relay.pyx      one client connection: two sockets, back-pressure, half-close, one named cause at the end;
               poller.pxi: the epoll set of all.
carrier.py     all connections of one process, from the accepted socket to the drain.
station.py     a carrier with its observers and counts: all that one process does with connections.
sidecar.py     listens, and gives what passes the limits to a station, or to workers; carrying.py: what these two share.
workers.py     `workers: N`: gives connections to N processes, adds their counts up, replaces the dead.
handle.py      one of these processes, as the main process has it.
worker.py      the same as it sees itself: a station that does what it is told.
channel.py     messages and sockets between the two.
beat.py        the one timer of a process.
identity.py    whether the broker behind a listener is the right one, and sends its clients here.
admin.py       /metrics, /livez, /readyz, /quotas, /config and /reload on loopback; http.py: the little HTTP they need.
"""
