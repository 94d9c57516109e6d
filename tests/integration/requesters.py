"""Clients that send requests at a rate, each on one connection: ``python -m tests.integration.requesters PLAN``.

They behave as Kafka's clients do: when a connection ends, they connect again, and send again what has no response. What
such a client would report to its application is an error here. It is a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import signal
import struct
import sys
from dataclasses import asdict, dataclass

from tests.frames import API_VERSIONS, request

TIMEOUT = 60.0
"""Seconds until a connection or a response is late, which is an error."""


@dataclass(frozen=True)
class RequestPlan:
    """``clients`` send ``rate`` requests per second in all, until SIGTERM comes."""

    port: int
    clients: int
    rate: float


@dataclass
class Results:
    """``reconnects``: connections that ended before the response to a request, which was sent again."""

    answered: int = 0
    reconnects: int = 0
    errors: int = 0


async def send(plan: RequestPlan, number: int, results: Results, stopped: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    interval = plan.clients / plan.rate
    due = loop.time() + interval * number / plan.clients
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    count = 0
    while not stopped.is_set():
        await asyncio.sleep(due - loop.time())
        count, attempts = count + 1, 0
        while True:
            try:
                async with asyncio.timeout(TIMEOUT):
                    if connection is None:
                        connection = await asyncio.open_connection("127.0.0.1", plan.port)
                    reader, writer = connection
                    writer.write(request(API_VERSIONS, 0, count))
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    answer = await reader.readexactly(size)
                results.errors += int.from_bytes(answer[:4]) != count
                break
            except TimeoutError:
                results.errors += 1
                break
            except (OSError, asyncio.IncompleteReadError):
                attempts += 1
                if connection is None or attempts > 2:  # refused, or no new connection serves it either
                    results.errors += 1
                    break
                connection[1].close()
                connection = None
                results.reconnects += 1
        results.answered += 1
        due = max(due + interval, loop.time() - 1)
    if connection is not None:
        connection[1].close()


async def run(plan: RequestPlan) -> Results:
    results, stopped = Results(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await asyncio.gather(*(send(plan, number, results, stopped) for number in range(plan.clients)))
    return results


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(run(RequestPlan(**json.loads(sys.argv[1])))))))
