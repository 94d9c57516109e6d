"""One pure module per table: a data frame of events in, the table's rows out; the same for stream and backfill."""
