"""The images that tests of ``deploy/`` run, built; a build whose files have not changed takes a second."""

from __future__ import annotations

from proxy.local.jars import cache_dir, resolve
from tests.deploy.podman import Podman


def sidecar(images: Podman) -> str:
    """Return the name of the sidecar's image."""
    return images.build("deploy/image/Containerfile", "localhost/brokerside")


def jobs(images: Podman) -> str:
    """Return the name of the image of the jobs."""
    resolve("spark-4.2.0", progress=False)
    return images.build("deploy/image/jobs.Containerfile", "localhost/brokerside-jobs", jars=cache_dir() / "jars")


def kafka(images: Podman) -> tuple[str, list[str]]:
    """Return the name of an image of Kafka, and the options with which a container of it has Kafka's jars."""
    image = images.build("tests/deploy/kafka.Containerfile", "localhost/kafka")
    jars = resolve("kafka-4.3.1", progress=False)
    classpath = ":".join(f"/jars/{jar.name}" for jar in jars)
    return image, ["--volume", f"{jars[0].parent}:/jars:ro", "--env", f"CLASSPATH={classpath}"]
