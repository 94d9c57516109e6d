"""A consumer whose group is coordinated by the sidecars: they assign its partitions, and push them to it.

    with CoordinatedConsumer("kafka-1.example:9092", "billing", "billing-1") as consumer:
        [stream] = consumer.create_message_streams({"orders": 1})["orders"]
        for message in stream:
            ...

Two threads: one keeps the connection to the coordinator, one fetches. docs/consumer.md says what is guaranteed.

Map
---
consumer.py             the class for applications.
arguments.py            checks the arguments.
streams.py              what the application iterates over.
conductor.py            the first thread: it feeds the membership, and does what that asks for.
link.py, login.py       the connection to a sidecar, and the login over it.
fetching.py             the second thread, around librdkafka.
backpressure.py         what it does while streams are full.
membership.py           where the coordinator is, what may be fetched, and until when; pure, as what follows.
events.py, effects.py   what the membership hears, and what it asks for.
states.py               its states.
settings.py             what the application sets.
lease.py                until when messages may be handed out.
addresses.py            which address is tried next.
backoff.py              how long to wait between attempts.
patience.py             how long to wait for an answer.
assignment.py           the partitions, and the offsets to consume next.
responses.py            responses that wait for the fetcher.
registration_errors.py  what error codes of the coordinator mean.
errors.py               the errors of a consumer that runs.
"""

from proxy.client.consumer.consumer import CoordinatedConsumer
from proxy.client.consumer.errors import CommitRefused, ConsumerFailed
from proxy.client.consumer.streams import MessageStream

__all__ = ["CommitRefused", "ConsumerFailed", "CoordinatedConsumer", "MessageStream"]
