"""Observers (KIP-388): code that is told about every exchange and can never touch one.

The contract
  api.py         what an observer implements and what it is given; observer_loader.py says whether a class fits.
  views.py       the read-only structs (KIP-388) of an exchange: over its kept bodies, else over the facts of them.
  dispatch.py    the only door from the data path: constructs, configures, feeds and closes observers.
  subscription.py    what each of them wants; of what nobody wants nothing is read.
  observer_thread.py        one observer's own thread: bounded queue, containment, counts; circuit_breaker.py leaves a broken one alone.
  queue_weight.pyx     what exchanges count for in such a queue.
  topic_names.py      topic ids to names; topic_id_learner.py finds pairs of both in the broker's responses.
  errors.py      the one error that is meant for a person.

The audit, an observer
  audit.py       what it is told of in, encode_numbered events out.
  event.py       the event: its fields, its envelope, its encoding; reference.py writes its page in docs, with what
                 examples.py makes.
  audit_filter.py       which exchanges give no event (pure).
  audit_writer.pyx   from exchanges to encoded events (pure); rows.pxi is the writing of them.
  rollup_writer.pyx  many requests in one event (pure); rollup.py says how many, and makes the events.
                 Both read exchanges by exchanges.pxi; request_events.py is what they share in Python.
  connection_events.py   every event but those of requests (pure).
  inventory.py   which topics exist, asked now and then.
  fetch_sessions.py  what fetches of a session leave out (pure).
  channel_muting.py       which connections brokers leave unread, because they told them to wait (pure).
  record_counter.py        counts the records inside of compressed message sets of Kafka before 0.11 (opt-in);
                 decompress.py decompresses them.

Delivery, of the audit
  outbox.py      from encoded events to their topic, and where each of them is.
  event_blocks.py       blocks of encoded events, and the records they become (pure).
  delivery_accounting.py    where every number is that was given (pure).
  spool_store.py       what waits on disk, of this run and of killed ones: spool.py its segments, ledger.py its account,
                 spool_runs.py both of one run.
  audit_producer.py        the Kafka producer: idempotent, bounded, every record accounted for.
  kafka_admin.py     admin calls over the INTERNAL listener.

Of the proxy nothing is imported here but its pure core; observers see exchanges through the protocols of ``api.py``.
"""
