"""Makes ``jars.lock``: resolves the roots of each set once, with their dependencies, and pins the result.

Run it with a trusted repository only: every later run accepts exactly what this one gets.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from proxy.errors import LocalError
from proxy.extras import install_command
from proxy.local.fetchers import find_ivy
from proxy.local.java import java
from proxy.local.pins import Pin, render


@dataclass(frozen=True)
class Roots:
    """What a set is asked for: coordinates, what to leave out (``group:artifact``), and whether to follow POMs."""

    jars: tuple[str, ...]
    without: tuple[str, ...] = ()
    transitive: bool = True


# Kafka's tools depend on Connect for one command that nobody here runs.
_CONNECT = ("org.apache.kafka:connect-runtime", "org.apache.kafka:connect-json")
_LOG4J = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"

# fmt: off
KAFKA_RELEASES = (
    "0.8.2.2", "0.9.0.1", "0.10.0.1", "0.10.1.1", "0.10.2.2", "0.11.0.3", "1.0.2", "1.1.1", "2.0.1", "2.1.1", "2.2.2",
    "2.3.1", "2.4.1", "2.5.1", "2.6.3", "2.7.2", "2.8.2", "3.0.2", "3.1.2", "3.2.3", "3.3.2", "3.4.1", "3.5.2", "3.6.2",
    "3.7.2", "3.8.1", "3.9.2", "4.0.1", "4.1.1", "4.2.0", "4.3.1", "4.4.0",
)
# fmt: on

ROOTS = {
    "kafka-4.3.1": Roots(("org.apache.kafka:kafka_2.13:4.3.1", "org.apache.kafka:kafka-tools:4.3.1", _LOG4J), _CONNECT),
    "kafka-3.9.2": Roots(("org.apache.kafka:kafka_2.13:3.9.2", "org.apache.kafka:kafka-tools:3.9.2"), _CONNECT),
    # The tools of 4.4.0 are not published everywhere; those of 4.3.1 speak to it.
    "kafka-4.4.0": Roots(("org.apache.kafka:kafka_2.13:4.4.0", _LOG4J), ("org.apache.kafka:kafka-tools-api",)),
    "kafka-clients-2.8.2": Roots(("org.apache.kafka:kafka-clients:2.8.2",)),
    # The last patch of each minor release, for what each of them has of the protocol; nothing of them is run but that.
    "kafka-protocol": Roots(
        tuple(f"org.apache.kafka:kafka-clients:{release}" for release in KAFKA_RELEASES), transitive=False
    ),
    # Spark itself is in the pyspark wheel. The token provider of 4.2.0 is not published everywhere, that of 4.0.0 fits.
    "spark-4.2.0": Roots(
        (
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
            "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
            "org.apache.kafka:kafka-clients:3.9.2",
            "org.apache.commons:commons-pool2:2.13.1",
        ),
        transitive=False,
    ),
    # Only tests have Spark read and write tables by itself. What Delta's POM asks for besides is in the pyspark wheel,
    # in other versions.
    "delta-4.4.0": Roots(
        (
            "io.delta:delta-spark_4.2_2.13:4.4.0",
            "io.delta:delta-storage:4.4.0",
            "io.delta:delta-kernel-api:4.4.0",
            "io.delta:delta-kernel-defaults:4.4.0",
            "io.delta:delta-kernel-unitycatalog:4.4.0",
        ),
        transitive=False,
    ),
    # Tables on S3. Of Amazon's SDK what Hadoop calls of it, in the version that Hadoop was built with: whole, it is one
    # jar of 650 MB. What is left out is in the pyspark wheel.
    "hadoop-aws-3.5.0": Roots(
        (
            "org.apache.hadoop:hadoop-aws:3.5.0",
            "software.amazon.awssdk:s3:2.35.4",
            "software.amazon.awssdk:s3-transfer-manager:2.35.4",
            "software.amazon.awssdk:sts:2.35.4",
        ),
        (
            "software.amazon.awssdk:bundle",
            "io.netty:*",
            "org.slf4j:slf4j-api",
            "commons-codec:commons-codec",
            "commons-logging:commons-logging",
            "org.apache.httpcomponents:*",
        ),
    ),
    "spark-avro": Roots(("org.apache.spark:spark-avro_2.13:4.1.1",), transitive=False),
}


def lock(target: Path) -> None:
    """Resolve every set and write ``target``; takes some minutes. Raises LocalError with the end of Ivy's output."""
    sets = {}
    with tempfile.TemporaryDirectory(prefix="brokerside-lock-") as work:
        for name, roots in ROOTS.items():
            print(f"resolving {name}", file=sys.stderr)
            sets[name] = _resolve(roots, Path(work), Path(work) / name)
            print(f"  {len(sets[name])} jars", file=sys.stderr)
    target.write_text(render(sets))


def _resolve(roots: Roots, work: Path, into: Path) -> tuple[Pin, ...]:
    ivy = find_ivy()
    if ivy is None:
        raise LocalError(f"the lock file is made with the Ivy of pyspark: run `{install_command('spark')}`")
    settings, module = work / "settings.xml", work / "ivy.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="repository"/>'
        f'<caches defaultCacheDir="{work}/cache"/>'
        '<resolvers><ibiblio name="repository" m2compatible="true"/></resolvers></ivysettings>'
    )
    module.write_text(_module(roots))
    pattern = f"{into}/[organisation]/[module]/[revision]/[artifact].[ext]"
    command = [str(java()), "-jar", str(ivy), "-settings", str(settings), "-ivy", str(module), "-confs", "default"]
    # Some jars are published as OSGi bundles.
    done = subprocess.run(
        [*command, "-retrieve", pattern, "-types", "jar", "bundle"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise LocalError("Ivy could not resolve:\n" + "\n".join(done.stdout.splitlines()[-25:]))
    return tuple(_pin(file) for file in into.rglob("*.jar"))


def _module(roots: Roots) -> str:
    follow = "true" if roots.transitive else "false"
    wanted = "".join(
        '<dependency org="{}" name="{}" rev="{}" '.format(*jar.split(":"))
        + f'transitive="{follow}" conf="default-&gt;runtime,master"/>'
        for jar in roots.jars
    )
    # Several versions of a jar stand beside each other where nothing but what is named comes.
    kept = "" if roots.transitive else '<conflicts><manager name="all"/></conflicts>'
    excluded = "".join('<exclude org="{}" module="{}"/>'.format(*jar.split(":")) for jar in roots.without)
    return (
        '<ivy-module version="2.0"><info organisation="brokerside" module="roots"/><configurations>'
        f'<conf name="default"/></configurations><dependencies>{wanted}{excluded}</dependencies>{kept}</ivy-module>'
    )


def _pin(file: Path) -> Pin:
    group, artifact, version = file.parts[-4:-1]
    content = file.read_bytes()
    return Pin(group, artifact, version, hashlib.sha256(content).hexdigest(), len(content))
