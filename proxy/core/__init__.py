"""Kafka's wire protocol, sans IO.

Rule of this folder: no asyncio, socket, time, os or logging. Time comes in as an argument, bytes come in as
arguments, facts go out as values. ``pyproject.toml`` holds the contract that checks it.

A module with a .pxd beside it is compiled with the C types that stand there, and runs interpreted as well:
``pytest -p tests.tools.interpreted``. What reads the bodies of Produce and Fetch is Cython alone: ``proxy.compiled``.

session.py           one client connection: bytes of both directions in, exchanges out; connection_state.py: what it
                     knows from one chunk to the next; session_states.py: its table of states and events.
header.py            what stands before a body: client id, tagged fields, ``acks``; memory.py: bytes at an offset.
observation.py       what observers learn of one session.
interception.py      what a session forwards instead of what came, and what it answers itself;
                     streamed_response.py, of a response that passes through a stream; last_rewritten.py, of one that
                     equals the last one.
produce_scan.py      where a Produce names a protected topic; protected_topics.py: which topics are.
account.py           what one session holds of the budget of its process: budget.py.
interceptor.py       the contract of interceptors, which answer requests or rewrite responses.
principal_tracker.py
                     who the client is: principal and software.
exchange.py          the facts of one request and its response; records.py: of the record batches in them; bodies.py:
                     which bodies are read, and within which bounds.
request_resources.py what a request is about; instructions.py: how the walker reads that, and the errors below.
response_errors.py   errors of single items of a response: which there are, and how bad each code is.
observation_interest.py
                     what observers want, by api and version.
counters.py          the counters of one listener.
apis.py              Kafka's apis and their versions.
schema.py            the layouts of messages, made from schema_table.py (Kafka's), private_schema.py (the sidecar's);
                     struct.py: a message as a struct; fields.py, accessors.py: how its fields are read.
names.py             names of any length in bounded bytes.
wire.py, encode.py   primitive types, read and written.
causes.py            why connections end.
proxy_protocol.py    PROXY headers.
authentication.py    who wrote a record of one of the sidecars' own topics.
"""
