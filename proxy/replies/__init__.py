"""What the sidecar answers itself, and what it changes in the broker's answers, without IO.

upstream.py      which api keys and versions the upstream supports, as it says itself.
unsupported.py   the answer to a request that it does not support.
api_versions.py  its ApiVersions response, which also names what the sidecar answers.
addresses.py     its addresses, replaced by those that clients can dial; addresses_splice.py: in their place in the
                 bytes; addresses_stream.py: at the end of responses that are not held back.
broker_metadata.py  BrokerMetadata: which brokers there are, and what each supports; tags.py: their builtin tags.
protected.py     the refusal of requests that would change the sidecars' own topics.
"""
