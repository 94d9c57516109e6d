"""Requests that the sidecar itself sends to a Kafka broker.

call.py              one request and its response, with a bound on its size.
messages.py          the requests as bytes, and what the responses say (pure).
feature_messages.py  the same for requests about feature versions (pure).
group_messages.py  the same for requests to Kafka's own group coordinators (pure).
topic_messages.py  the same for requests about topics and their partitions (pure).
"""
