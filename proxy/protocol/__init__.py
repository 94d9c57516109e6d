"""ProtocolVersion: one number for each addition to Kafka's protocol, and what a broker's range of them says.

``protocol_versions.json`` is the only place where they are kept: a row for each addition, in order, never changed or
taken out; only when a version came to be deprecated or was removed is added. ``docs/protocol.md`` describes it.
"""
