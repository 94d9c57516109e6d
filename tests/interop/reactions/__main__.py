"""Runs all clients against both answers, and prints the table as Markdown."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from proxy.local import cluster
from proxy.local.jars import java, resolve
from proxy.local.ports import free_ports
from proxy.local.sidecars import SidecarProcess
from tests.interop import clients
from tests.interop.reactions.liar import Liar, Seen

APIS = {"producer": 0, "consumer": 1, "admin": 19}
"""What each role is lied about: Produce, Fetch, CreateTopics."""

POLICIES = ("empty", "close")
AT_ONCE = 3
TIMEOUT = 60.0
"""Seconds for one attempt; the programs themselves give up after 15."""

SETTLE = 3.0
"""Seconds in which a Fetch that was asked before the lie is answered."""

TEXT = 160
"""Characters of a client's text in the table."""

VARYING = re.compile(r"(?<=127\.0\.0\.1:)\d+|(?<=<-)\d+|(?<=0x)[0-9a-f]+")
"""Ports and places in memory, which are others each time."""


class Attempt(msgspec.Struct):
    """``said``: what the application gets, empty where all is well. ``heard``: what the client logs first."""

    said: str
    heard: list[str]
    seconds: float


@dataclass
class Reaction:
    """Of one client in one role to one answer."""

    client: str
    role: str
    policy: str
    attempts: list[Attempt]
    seen: Seen
    """Until after the second attempt."""

    def row(self) -> str:
        """Of the table."""
        if len(self.attempts) < 2:
            cells = ["did not run", "", "", ""]
        else:
            lied, after = self.attempts[1], self.attempts[-1]
            reported = f"`{_cut(lied.said)}` after {lied.seconds} s" if lied.said else "nothing; it succeeds"
            if "nothing" in lied.said:
                reported = "nothing within 15 s" if lied.seconds else lied.said
            logged = f"`{_cut(lied.heard[0])}`" if lied.heard else ""
            ends = {f"the {who} closes it" for who in self.seen.ended}
            stays = " or ".join(sorted(ends)) or "stays"
            tries = f"{self.seen.lies} request{'s' if self.seen.lies != 1 else ''}, {stays}"
            cells = [reported, logged, tries, "yes" if not after.said else f"no: `{_cut(after.said)}`"]
        return f"| {self.client} | {self.role} | {self.policy} | {' | '.join(cells)} |"


def _cut(text: str) -> str:
    flat = VARYING.sub("…", " ".join(text.split()).replace("|", "\\|").replace("`", "'"))
    return flat if len(flat) <= TEXT else flat[:TEXT] + "…"


def programs() -> dict[str, list[str]]:
    """The command line of each client, up to its role."""
    python = [sys.executable, "-m", "tests.interop.reactions.python"]
    jars = ":".join(str(jar) for jar in resolve("kafka-4.4.0", progress=False))
    source = clients.HERE / "java_clients" / "React.java"
    small = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return {
        "Java 4.4.0": [str(java()), *small, "-cp", jars, str(source)],
        **{name: [*python, name] for name in ("librdkafka", "aiokafka", "kafka-python")},
        "kafkajs": clients.node("react.mjs"),
        "franz-go": clients.go("franz_go", "react"),
        "sarama": clients.go("sarama", "react"),
    }


class Run:
    """One cluster, one sidecar with a listener for each policy, and the liar before it."""

    def __init__(self, bootstrap: str, internal: str, listeners: dict[str, int]) -> None:
        self.bootstrap = bootstrap
        self.internal = internal
        self.liar = Liar(lambda client_id: listeners[client_id.partition(".")[0]])
        self.turn = asyncio.Semaphore(AT_ONCE)

    async def react(self, client: str, command: Sequence[str], role: str, policy: str) -> Reaction:
        """Let one client react."""
        client_id = f"{policy}.{role}.{client.replace(' ', '-')}"
        topic = client_id
        async with self.turn:
            await asyncio.to_thread(self.prepare, topic)
            process = await asyncio.create_subprocess_exec(
                *command, role, self.bootstrap, topic, client_id,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            found: list[Attempt] = []
            seen = Seen()
            try:
                found.append(await self.attempt(process))
                self.liar.armed[client_id] = APIS[role]
                if role == "consumer":
                    await asyncio.sleep(SETTLE)
                await asyncio.to_thread(self.produce, topic)
                took_too_long = False
                try:
                    found.append(await self.attempt(process))
                except TimeoutError:
                    found.append(Attempt(f"nothing within {TIMEOUT:.0f} s", [], 0.0))
                    took_too_long = True
                finally:
                    del self.liar.armed[client_id]
                    seen = msgspec.convert(msgspec.to_builtins(self.liar.seen.get(client_id, Seen())), Seen)
                await asyncio.to_thread(self.produce, topic)
                found.append(await (self.outcome(process) if took_too_long else self.attempt(process)))
            except (TimeoutError, ConnectionError, msgspec.DecodeError) as error:
                found.append(
                    Attempt("nothing" if isinstance(error, TimeoutError) else "its process has ended", [], 0.0)
                )
            process.kill()
            await process.communicate()
        reaction = Reaction(client, role, policy, found, seen)
        print(json.dumps(msgspec.to_builtins(reaction)), file=sys.stderr, flush=True)
        return reaction

    async def attempt(self, process: asyncio.subprocess.Process) -> Attempt:
        """Have the client try once."""
        assert process.stdin is not None
        process.stdin.write(b"\n")
        await process.stdin.drain()
        return await self.outcome(process)

    async def outcome(self, process: asyncio.subprocess.Process) -> Attempt:
        """What comes of an attempt. Java logs to where it prints."""
        assert process.stdout is not None
        logged = []
        async with asyncio.timeout(TIMEOUT):
            while (line := await process.stdout.readline()) and not line.startswith(b"{"):
                logged.append(line.decode().rpartition(" ERROR ")[2])
        attempt = msgspec.json.decode(line, type=Attempt)
        attempt.heard += logged[:1]
        return attempt

    def prepare(self, topic: str) -> None:
        """Make the topic, with one record."""
        admin = AdminClient({"bootstrap.servers": self.internal})
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
        self.produce(topic)

    def produce(self, topic: str) -> None:
        """One more record, past the sidecar."""
        producer = Producer({"bootstrap.servers": self.internal})
        producer.produce(topic, b"record")
        assert producer.flush(30) == 0


async def measure(bootstrap: str, internal: str, listeners: dict[str, int]) -> list[Reaction]:
    """All clients, in the order of the table."""
    run = Run(bootstrap, internal, listeners)
    commands = await asyncio.to_thread(programs)
    host, _, port = bootstrap.rpartition(":")
    async with await asyncio.start_server(run.liar.serve, host, int(port)):
        return await asyncio.gather(
            *(
                run.react(client, command, role, policy)
                for policy in POLICIES
                for client, command in commands.items()
                for role in APIS
            )
        )


def main() -> None:
    """Start a cluster, measure, print."""
    with tempfile.TemporaryDirectory() as folder:
        state = cluster.up(Path(folder), progress=False, broker_properties={"auto.create.topics.enable": "false"})
        try:
            node = state.nodes[0]
            listeners = dict(zip(POLICIES, free_ports(len(POLICIES)), strict=True))
            config = yaml.safe_load((Path(folder) / "sidecar-1.yaml").read_text())
            del config["observer.class.names"]
            config["listeners"] = [
                {
                    "name": policy,
                    "bind": f"127.0.0.1:{port}",
                    "advertised": node.advertised,
                    "upstream": node.upstream,
                    "unsupported.request.response": policy,
                }
                for policy, port in listeners.items()
            ]
            path = Path(folder) / "reactions.yaml"
            path.write_text(yaml.safe_dump(config))
            sidecar = SidecarProcess.start(path, path.with_suffix(".log"), node.admin)
            try:
                found = asyncio.run(measure(node.advertised, node.internal, listeners))
            finally:
                sidecar.stop()
        finally:
            cluster.down(Path(folder))
    print("| client | role | answer | what the application gets | what it logs | the connection | goes on |")
    print("|---|---|---|---|---|---|---|")
    for reaction in found:
        print(reaction.row())


if __name__ == "__main__":
    main()
