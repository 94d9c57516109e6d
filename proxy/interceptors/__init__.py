"""The interceptors: what the sidecar answers itself, and what it changes in the broker's responses. Pure, without IO.

supported_versions.py    The api keys and versions that clients of a listener may use.
unsupported_requests.py  Answers requests that the broker does not support.
api_versions.py          Adds the sidecar's own apis and features to the broker's ApiVersions response.
feature_tags.py          Adds features to the tagged fields of that response.
update_features.py       Answers UpdateFeatures for the features of the fleet.
address_rewriter.py      Replaces the broker addresses in responses by those that clients can dial.
address_stream.py        Replaces addresses at the end of responses that are not buffered.
address_walk.pyx         Finds and replaces addresses in the bytes of a message.
tagged_nodes.py          Replaces addresses in tagged fields.
ip_quotas.py             Refuses changes of quotas by IP address that the sidecar would not apply.
broker_metadata.py       Answers BrokerMetadata: which brokers there are, and what each supports.
consumer_groups.py       Answers ClusterMetadata, and RegisterConsumer as far as the coordinator does not.
consumer_rights.py       Asks the broker, as a client, what the client may read.
tags.py                  The built-in tags of a broker.
topic_protection.py      Denies requests that would change the sidecars' own topics.
"""
