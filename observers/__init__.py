"""Observers (KIP-388): code that receives every exchange of a sidecar and cannot change any of them.

The contract
  api.py               what an observer implements and what it receives.
  observer_loader.py   imports and constructs an observer, and checks its methods.
  views.py             read-only structs (KIP-388) of an exchange, over its kept bodies or over the facts of them.
  dispatch.py          the only entry from the data path: constructs, configures, feeds and closes observers.
  subscription.py      which requests each observer wants; what no observer wants is not read.
  observer_thread.py   the thread of one observer: bounded queue, error handling, counts.
  background.pyx       threads that let the event loop have the CPU as soon as it has work.
  trial.py             calls an observer without a sidecar; packet_capture.py: over captured connections (pure).
  circuit_breaker.py   stops the calls to an observer that only fails.
  queue_weight.pyx     the weight of exchanges in the queue of an observer.
  topic_names.py       names of topic ids; topic_id_learner.py reads both from the broker's responses.
  errors.py            the error that a person reads.

The audit's events
  event_observer.py    receives exchanges, connection changes and throttle reports, and emits numbered events; the base
                       of two observers: audit.py sends them to a topic, opentelemetry.py to a collector.
  event.py             the event: its fields, its envelope, its encoding; cluster_events.py: kinds of topics and groups,
                       account_events.py: kinds of what was lost, and done.
  reference.py         generates docs/audit-event.md; examples.py makes the examples in it.
  audit_filter.py      which exchanges give no event (pure).
  audit_writer.pyx     encodes exchanges as events (pure); rows.pxi writes the JSON.
  connection_writer.pyx  encodes changes of connections as events (pure). json_buffer.pxi: how both write texts.
  rollup_writer.pyx    sums many requests into one event (pure); rollup.py bounds and splits these events.
                       Both writers read exchanges by exchanges.pxi and share request_events.py.
  offset_tracker.pyx   ends of partitions, and what members of groups do, until that is emitted (pure);
                       group_activity.py has the members and their committed offsets.
  request_resources.py what a request reads or changes, in an event (pure).
  item_errors.py       errors of single topics, partitions, groups, … in an event (pure).
  numbered_events.py   encodes every other event (pure).
  inventory.py         polls the list of topics.
  fetch_sessions.py    partitions that incremental fetches leave out (pure).
  channel_muting.py    connections that the broker does not read because it throttles them (pure).
  record_counter.py    counts records in compressed message sets of Kafka before 0.11 (opt-in);
                       decompress.py decompresses them.

Metrics of requests, an observer
  request_metrics.py     receives exchanges; request_metrics_stats.py: what it counts.
  request_counter.pyx    counts by api, principal, topic and group (pure). measures.pxi, which the rollups share: how
                         long a request took and how bad its errors are.

Delivery of the audit's events
  outbox.py              brings encoded events to their destination and accounts for each of them.
  event_blocks.py        blocks of encoded events, and the Kafka records made of them (pure).
  delivery_accounting.py where every sequence number is: delivered, spooled, queued or lost (pure).
  spool_store.py         events on disk, of this run and of dead runs.
  spool_runs.py          one run on disk: spool.py holds its segments, ledger.py its counts.
  observed_counter.py    the count of what a process has observed, which outlives it.
  record_sender.py       what the outbox needs of that which delivers its records. There are two:
  audit_producer.py      the Kafka producer: idempotent, bounded, with a report for every record.
  otlp_exporter.py       requests to an OpenTelemetry collector, again and again until each has an outcome.
  kafka_admin.py         admin calls over the INTERNAL listener; cluster_id.py asks for the cluster's id.

OpenTelemetry logs
  otlp_settings.py       the settings of opentelemetry.py, checked.
  otlp_encoding.py       records of events as requests (pure). otlp_writer.pyx writes the log records: json_reader.pxi
                         reads the events, error_names.py names Kafka's errors.
  otlp_response.py       what a response means (pure).
  http_connection.py     one HTTP connection: a deadline for each request, a bound on each response.

This package imports nothing of the proxy but ``proxy.core`` and ``proxy.compiled.exchange``. Observers see exchanges
through the protocols of ``api.py``.
"""
