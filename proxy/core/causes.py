"""Why a connection ended: a closed list, which is also a label of metrics and a field of events."""

from __future__ import annotations

from typing import Literal

Cause = Literal[
    "client_closed",  # the client ended it, as clients do
    "client_reset",
    "connection_setup_timeout",  # its first request was not complete within connection.setup.timeout.ms
    "client_timeout",  # it confirms nothing any more: its machine or the network is gone
    "broker_closed",
    "broker_reset",
    "broker_timeout",
    "upstream_unreachable",  # the broker did not accept within upstream.connect.timeout.ms
    "client_tls_failed",  # its TLS handshake failed, its certificate has no principal, or it sent no valid TLS
    "broker_tls_failed",  # the same of the broker; its certificate may be of another name or CA
    "client_invalid_size",
    "client_invalid_header",
    "client_invalid_request",  # one that the sidecar itself answers, and that cannot be read
    "broker_invalid_size",
    "broker_invalid_header",
    "broker_out_of_sync",  # a response that matches no request
    "unsupported_request",  # one that is answered by closing
    "protected_topic",  # a request that would have changed a topic of the sidecars
    "session_failed",  # an error of the sidecar's own, while it held back some of the connection's bytes
    "drain_completed",  # closed by a shutdown when nothing was open
    "drain_timeout",  # closed by a shutdown with a request open
    "untrusted_proxy",  # it came from outside proxy.protocol.trusted
    "invalid_proxy_header",  # no PROXY header, or one that is not as specified
    "proxy_header_timeout",  # its PROXY header was not complete in time
    "proxy_header_overload",  # too many others waited for their PROXY header
    "quota_exceeded",  # a limit had no room for it, and it was closed before it was carried
    "principal_quota_exceeded",  # its client logged in, and a limit of its principal had no room for it
    "evicted",  # the longest idle one, closed to have room for one of a protected listener
    "connection_max_idle",  # no byte for connections.max.idle.ms
    "connection_max_age",  # older than connections.max.age.ms
    "closed_by_operator",  # by POST /connections/close
    "consumer_left",  # a consumer has said that it leaves its group
    "consumer_failed",  # a consumer did not answer its coordinator in time, or does not read
    "consumer_replaced",  # a consumer has registered on another connection
    "consumer_malformed",  # a consumer sent its coordinator what is no answer to it
    "consumer_denied",  # a consumer has lost the right to read its group or a topic
    "rebalance_failed",  # its group could not be rebalanced
    "group_has_members",  # its group has members of Kafka's own protocols
    "registration_idle",  # it was refused as a consumer, and did not register again in time
    "login_expired",  # a consumer's login has lasted nearly as long as the broker lets it (connections.max.reauth.ms)
    "coordinator_moved",  # the groups of this consumer are coordinated elsewhere now
    "worker_lost",  # the process that carried it ended, or had no descriptor left for it
]
"""Why a connection ended; also the label of ``brokerside_connections_closed_total``."""
