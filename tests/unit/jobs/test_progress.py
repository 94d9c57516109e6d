"""What a job says while it runs."""

import pytest

from spark_jobs.progress import BatchProgress, Notice, ProgressLines


@pytest.mark.promise("jobs.md", "A job says what it does from its start on, and small batches once a minute.")
def test_small_batches_are_summed_up_and_others_are_said_at_once() -> None:
    said: list[str] = []
    now = [5.0]
    say = ProgressLines(lambda what: said.append(str(what)), lambda: now[0])

    def batch(number: int, records: int = 2, dead: int = 0) -> None:
        say(BatchProgress(records, records, dead, 0, 0, number, 0.5))

    say(Notice("starts"))
    for number in range(8):
        batch(number)
        now[0] += 20
    assert said == [
        "starts",
        "batch 0: 2 records, 2 events in 0.5 s",
        "batches 1 to 3: 6 records, 6 events",
        "batches 4 to 6: 6 records, 6 events",
    ]
    del said[:]
    batch(8, records=1_000)
    batch(9, dead=1)
    batch(10)
    say(Notice("ends"))
    assert said == [
        "batch 7: 2 records, 2 events in 0.5 s",
        "batch 8: 1,000 records, 1,000 events in 0.5 s",
        "batch 9: 2 records, 2 events, 1 dead letter in 0.5 s",
        "batch 10: 2 records, 2 events in 0.5 s",
        "ends",
    ]
