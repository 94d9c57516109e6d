"""Jobs, as the bench has them: ``python -P jobs_process.py BOOTSTRAP short|continuous``.

Each line of stdin is a JSON array: a topic, a folder for its tables, and "continuous" for a job until SIGTERM; all in
one Spark session. A JSON line on stdout is its result, and the first line says that there is a session.
"""

from __future__ import annotations

import json
import os
import sys

from proxy.local.jars import resolve
from spark_jobs.run import run
from spark_jobs.session import spark_conf, spark_session


def main(bootstrap: str, kind: str) -> None:
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # for whatever prints
    with spark_session("bench", spark_conf("local[*]", resolve("spark-4.2.0"), {}, short=kind == "short")):
        print("{}", file=results)
        for line in sys.stdin:
            topic, tables, *mode = json.loads(line)
            done = run(bootstrap_servers=bootstrap, topic=topic, tables=tables, jars=[], available_now=not mode)
            print(json.dumps({"events": done.events, "batches": done.batches}), file=results)


if __name__ == "__main__":
    main(*sys.argv[1:])
