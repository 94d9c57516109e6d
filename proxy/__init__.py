"""The sidecar: a proxy for one Kafka broker that forwards every byte and understands enough of them.

Glossary
--------
frame       one length-prefixed message of Kafka's protocol: int32 size, then ``size`` bytes.
exchange    one request together with its response (or with the reason why none came).
session     the protocol state of one client connection: frames in, exchanges out; knows no sockets.
walker      reads the topics, partitions and batch headers of a body in place, without touching records.
observer    code outside the data path that receives finished exchanges (KIP-388); it can never change or delay one.
limit       a bound on connections or their rate (KIP-612, KIP-402).
upstream    the broker's private port, to which the sidecar connects.
interceptor answers requests in the broker's place, or changes its answers, on one listener.
budget      the memory that clients may make one process hold. Beyond it bodies are not kept, and connections wait.
cause       why a connection ended; a closed list, also the label of the metric.

Folders
-------
core        Kafka's wire protocol without IO: fields, facts, who a client is, answers; what bounds walkers and sessions.
protocol    ProtocolVersion: the table of additions to Kafka's protocol, and what follows from a broker's ApiVersions.
interceptors  what the sidecar answers itself or changes in the broker's responses, without IO.
limits      which connections are admitted, and when: rates and numbers of connections, without IO.
config      the configuration: its keys, everything that can be wrong with it, and the limits that follow from it.
net         the data path's IO: listeners, admission, relay, worker processes, the admin endpoint.
features    levels of features that sidecars and jobs agree on, without IO (KIP-584).
coordinator  groups of consumers: who owns which partitions, and until when, without IO.
fleet       the sidecar's own calls to its cluster: the quotas that are stored there, the brokers, the other sidecars.
client      for programs: asks a sidecar which brokers there are, what each supports, and for levels of features.
commands    the commands of ``brokerside``, by what they need.
tls         TLS of the listeners without sockets: certificates, contexts, principals of certificates.
telemetry   log lines and metrics.
compiled    in Cython alone, what reads bodies: walkers, exchange.
rpc         requests that the sidecar itself sends to a broker: one at a time, bounded.
local       real Kafka on this machine for demo, tests and trying things: jars, cluster, workload.
start_checks.py  what the machine has to give: descriptors, backlog, memory.
group_coordinator.py  runs the coordinator of groups of consumers; group_contracts.py: what it needs of the other parts;
            group_log.py: what it logs and counts.
run.py      a sidecar from its start to its end.
daemon_executor.py  blocking calls that may never return, in a thread of their own.
extras.py   the optional packages of a command, and how to install them.
number_array.py  numbers of 64 bits in an array, for compiled code.
errors.py   errors, by who caused them: this process or one of its peers.
reload.py   reloads the configuration of a running sidecar: the whole file or nothing.
sd_notify.py  notifies the service manager of the state of the sidecar.
successor.py  starts the process that takes over from this one, at SIGUSR2.
admin_client.py  requests of the command to a running sidecar; quotas_view.py, connections_view.py, groups_view.py: how
            the responses are shown, with text_table.py; top.py computes rates from them, top_screen.py shows these
            live.
cli.py      the ``brokerside`` command; with run.py the only module that wires the parts together.
"""

__version__ = "0.1.0"
