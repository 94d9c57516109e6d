"""The IO of the sidecar: the only package that owns sockets, timers, signals and processes.

Connections, from the accept to the end:

listener_manager.py    Listens on every configured address and passes each accepted client on.
listening_sockets.py   Opens listening sockets, or takes them from systemd or from a predecessor.
acceptor.py            One listening socket with its own accept loop, which can pause.
descriptors.py         How many descriptors the process has open, and how many connections may have.
sockets.pyx            Accepts clients, and connects to a broker on this machine, in few system calls.
proxy_header.py        Reads the PROXY protocol header with which a connection begins.
admission.py           Applies the connection quotas of ``proxy.limits`` to accepted sockets.
connection_handler.py  The interface of whatever serves admitted connections: a data plane or a worker pool.
data_plane.py          Serves connections in this process: connection manager, observers and counters.
connection_manager.py  All connections of one process, from the admitted socket to the end of the drain.
relay.pyx              One connection: two sockets, back-pressure, half-close, and one named cause of its end.
                       relay_side.pxi is one side of it, relay_tls.pxi what a side with TLS does differently,
                       relay_deferred.pxi what it does for a deferred request.
deferred_requests.py   Serves requests that the sidecar answers later than at once, with calls to the broker.
consumer_handler.py    The connection handler where consumer groups are coordinated: all other connections, and theirs.
consumers.py           The connections of consumers, in the main process. consumer.py is one of them, consumer_socket.py
                       its socket: whole frames in, bytes out.
consumer_rights.py     Asks the broker again what consumers may read.
consumer_handover.py   What is passed on with a connection that is given up to the coordinator.
poller.pyx             The epoll set of all relays and handshakes of one event loop.
tls_stream.pyx         TLS of one side of a connection: ciphertext in, plaintext out, and back.
tls_handshake.pyx      The handshake before a relay begins, one step at a time; tls_contexts.py: the contexts in force.
client_identity.py     Who a client is before it has sent a request.
certificate_expiry.py  When certificates expire.
round_robin.py         Lets connections with much buffered input share the event loop fairly.
connection_setup.py    Closes clients whose first request does not arrive in time.
connection_lifetime.py Closes connections that are idle for too long, or too old, between two requests.
open_connections.py    Describes the open connections, for /connections.
dead_peers.py          Detects peers that vanished without closing the connection.

The broker behind a listener:

upstream.py               Opens connections to the broker.
upstream_resolver.py      Resolves the broker's host name, with one lookup at a time.
upstream_call.py          One request of the sidecar's own, on a connection of its own.
upstream_check.py         Checks that the broker is the configured one and advertises this sidecar.
api_versions_probe.py     Asks the broker which api versions it supports.
serving_listeners.py      The listeners of one process, each with its broker and its interceptors.
listener_interceptors.py  The interceptors of one listener, and what they know of the broker and the fleet.

Worker processes (``workers: N``):

worker_pool.py     Gives connections to N processes, sums up their counters and replaces those that end.
worker_connections.py
                   Asks all workers for their open connections.
worker_evictions.py
                   Evicts the longest idle connections of all workers.
worker_process.py  One worker process, as the main process sees it.
worker.py          The worker process itself: a data plane that the main process controls.
feature_update_calls.py
                   Updates of features that clients of a worker ask for, on their way to the main process.
worker_ipc.py      Messages and sockets between the main process and a worker.

A restart without refusing a connection (``run --takeover``):

takeover_server.py  Hands sockets, rates and connections to a successor, in the running sidecar.
takeover_client.py  Takes them, in the successor.
takeover_ipc.py     The messages between the two.

The process:

ticker.py       The one periodic timer of a process.
forced_exit.py  Ends a process that does not finish its shutdown in time.
admin.py        The admin endpoint: /metrics, /livez, /readyz, /quotas, /connections, /config, /reload.
group_pages.py  Its pages about groups of consumers: /groups, /coordinator.
metrics_page.py Renders /metrics once for all scrapers that wait for it.
http.py         The HTTP/1.1 server behind it.
"""
