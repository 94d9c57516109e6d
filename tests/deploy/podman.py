"""Podman and Buildah with a storage of their own, in which the layers of builds stay from one run to the next."""

import functools
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from proxy.local.jars import cache_dir, resolve
from tests.deploy import debian
from tests.tools import fetched

ROOT = Path(__file__).parents[2]
BASE = "localhost/debian:trixie"
"""What stands for a registry's image of Debian, which cannot be had everywhere."""

PAUSE = "localhost/pause"
"""Of the container that a pod begins with; Podman's own needs a program that is not installed everywhere."""

BUILD_TIMEOUT = 1100
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
"""What this machine checks the package index with; the base need not know it."""

DESCRIPTORS = 20_000
"""Of a container; Podman's own default may be more than this machine allows."""


class Podman:
    def __init__(self, folder: Path, unpacked: Path | None) -> None:
        """``unpacked``: the folder with the programs where they are not installed."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        settings: dict[str, dict[str, object]] = {
            "containers": {"default_ulimits": [f"nofile={DESCRIPTORS}:{DESCRIPTORS}", "nproc=30000:30000"]},
            "engine": {"cgroup_manager": "cgroupfs", "events_logger": "file", "runtime": "runc", "infra_image": PAUSE},
            "network": {"network_config_dir": f"{folder}/networks"},
        }
        environment: dict[str, str] = {}
        if unpacked is not None:
            environment = fetched.environment_of(unpacked)
            environment["PATH"] = f"{_iptables(folder, unpacked)}:{environment['PATH']}"
            environment["XTABLES_LIBDIR"] = ":".join(map(str, unpacked.glob("usr/lib/*-linux-gnu/xtables")))
            settings["containers"]["seccomp_profile"] = f"{unpacked}/usr/share/containers/seccomp.json"
            # conmon runs Podman again when a container ends, and gets no other variables than these.
            settings["engine"]["conmon_env_vars"] = [f"{name}={value}" for name, value in environment.items()]
            settings["engine"]["conmon_path"] = [f"{unpacked}/usr/bin/conmon"]
            settings["engine.runtimes"] = {"runc": [f"{unpacked}/usr/sbin/runc"]}
            settings["network"]["cni_plugin_dirs"] = [f"{unpacked}/usr/lib/cni"]
        (folder / "containers.conf").write_text(_toml(settings))
        storage = {"driver": "overlay", "graphroot": f"{folder}/root", "runroot": f"{folder}/run"}
        (folder / "storage.conf").write_text(_toml({"storage": storage}))
        policy = folder / "policy.json"
        policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        self._policy = ("--signature-policy", policy)
        self._environment = {
            **os.environ,
            **environment,
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        }

    def __call__(self, *arguments: object, program: str = "podman", timeout: float = 120) -> str:
        """Return what the command prints, without the last line's end; fail with what it says if it fails."""
        done = self._run(program, arguments, timeout)
        assert done.returncode == 0, f"{program} {' '.join(map(str, arguments))}: {done.stderr[-3000:]}"
        return done.stdout.strip()

    def succeeds(self, *arguments: object) -> bool:
        return self._run("podman", arguments, 120).returncode == 0

    def _run(self, program: str, arguments: Sequence[object], timeout: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *map(str, arguments)],
            env=self._environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def build(self, containerfile: str, tag: str, **mounts: Path) -> str:
        """Build an image of the project on ``BASE``, and return its name. ``mounts``: folders by their names there.

        Isolation "chroot" would run Buildah again without LD_LIBRARY_PATH, which an unpacked one needs.
        """
        given = {"BASE": BASE, "SSL_CERT_FILE": "/run/certificates.crt"}
        self._build(
            "--layers", "--isolation", "oci", "--network", "host",
            "--volume", f"{CERTIFICATES}:/run/certificates.crt:ro",
            *(part for name, folder in mounts.items() for part in ("--volume", f"{folder}:/{name}:ro")),
            *(part for name, value in given.items() for part in ("--build-arg", f"{name}={value}")),
            "--file", containerfile, "--tag", tag, ".",
        )  # fmt: skip
        return tag

    def load(self, archive: Path, tag: str) -> None:
        """Make an image of a file system; ``archive``: a tar in ``folder``."""
        containerfile = self.folder / "Containerfile"
        containerfile.write_text(f"FROM scratch\nADD {archive.name} /\n")
        self._build("--file", containerfile, "--tag", tag, self.folder)

    def _build(self, *arguments: object) -> None:
        self("build", *self._policy, *arguments, program="buildah", timeout=BUILD_TIMEOUT)

    def play(self, manifests: Path) -> None:
        """Start the pods of a file as Kubernetes would."""
        containerfile = self.folder / "pause.Containerfile"
        containerfile.write_text(f'FROM {BASE}\nENTRYPOINT ["/usr/bin/sleep", "infinity"]\nSTOPSIGNAL SIGKILL\n')
        self._build("--layers", "--file", containerfile, "--tag", PAUSE, self.folder)
        self("kube", "play", *self._policy, manifests)

    @contextmanager
    def mounted(self, image: str) -> Iterator[Path]:
        """Give the folder in which the files of an image can be read."""
        yield Path(self("image", "mount", image))
        self("image", "unmount", image)

    def run(self, image: str, *options: object, command: tuple[str, ...] = ()) -> str:
        """Start a container on this machine's network, as little allowed as a sidecar may be; return its id."""
        return self(
            "run", "--detach", "--network", "host", "--read-only", "--read-only-tmpfs=false", "--cap-drop", "all",
            "--security-opt", "no-new-privileges", *options, image, *command,
        )  # fmt: skip


def _toml(sections: Mapping[str, Mapping[str, object]]) -> str:
    """Return a file of settings; a text or a list of texts is the same in TOML as in JSON."""
    return "".join(
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        for name, settings in sections.items()
    )


def _iptables(folder: Path, unpacked: Path) -> Path:
    """Return a folder with the names of iptables that its package makes only where it is installed."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    for name in ("iptables", "ip6tables"):
        (programs / name).unlink(missing_ok=True)
        (programs / name).symlink_to(unpacked / "usr/sbin" / f"{name}-nft")
    return programs


@functools.cache
def podman() -> Podman:
    """Return one whose storage has ``BASE``. Skips the test where it cannot be had."""
    if os.geteuid() != 0:
        pytest.skip("containers are built and run by root here")
    try:
        _, unpacked = fetched.debian("podman", ["podman", "buildah", "runc", "conmon"])
    except fetched.MissingError as missing:
        pytest.skip(f"no Podman: {missing}")
    made = Podman(cache_dir() / "deploy" / "containers", unpacked)
    made("image", "prune", "--force", "--filter", "until=24h")  # layers of builds that are no longer used
    if BASE not in made("images", "--format", "{{.Repository}}:{{.Tag}}").split():
        archive = debian.bootstrap(made.folder / "base.tar", "ca-certificates")
        made.load(archive, BASE)
        archive.unlink()
    return made


def sidecar(images: Podman) -> str:
    return images.build("deploy/image/Containerfile", "localhost/brokerside")


def jobs(images: Podman) -> str:
    resolve("spark-4.2.0", progress=False)
    return images.build("deploy/image/jobs.Containerfile", "localhost/brokerside-jobs", jars=cache_dir() / "jars")


def kafka(images: Podman) -> tuple[str, list[str]]:
    """Return the name of an image of Kafka, and the options with which a container of it has Kafka's jars."""
    image = images.build("tests/deploy/kafka.Containerfile", "localhost/kafka")
    jars = resolve("kafka-4.3.1", progress=False)
    classpath = ":".join(f"/jars/{jar.name}" for jar in jars)
    return image, ["--volume", f"{jars[0].parent}:/jars:ro", "--env", f"CLASSPATH={classpath}"]
