"""How clients react to the answer to an unsupported request: ``python -m tests.interop.reactions``.

Each client does one thing three times: once as always, once while its requests of one api reach the sidecar in a
version that no broker has (``liar.py``), once as always again. What it reports to the application, what becomes of its
connection, and whether it works in the end, make the table in docs/unsupported-requests.md.

A client is a program that takes ROLE BOOTSTRAP TOPIC ID (role: producer, consumer or admin). For each line that it
reads it does its thing, and prints one line of JSON (``Attempt``).
"""
