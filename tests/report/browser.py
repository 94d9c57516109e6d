"""A real browser without a window: one of PATH, or one that is fetched from the npm registry, pinned.

It is spoken to through two pipes in its own protocol (Chrome DevTools), so nothing listens on a port.
"""

import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow

from proxy.local.jars import cache_dir

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PACKAGE = "@sparticuz/chromium@153.0.0"
SHA512 = "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA=="
"""Of the package's archive, as npm writes integrity."""
PARTS = ("al2023", "swiftshader", "fonts")
"""Libraries and a font that the browser of the package brings along."""

FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
<dir prefix="relative">fonts</dir><dir>/usr/share/fonts</dir><cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
"""

FLAGS = (
    "--headless",
    "--no-sandbox",  # the tests may run as root; the page is their own
    "--no-zygote", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--font-render-hinting=none",
    "--remote-debugging-pipe",
)  # fmt: skip


class NoBrowserError(Exception):
    """There is none, and none could be fetched; the text says why."""


@dataclass
class Page:
    """One page in a browser, and all that it said and asked for."""

    to_browser: BinaryIO
    from_browser: BinaryIO
    session: str = ""
    requests: list[str] = field(default_factory=list)
    """URLs that the page asked for, but for what it has inside (``data:``, ``blob:``)."""
    complaints: list[str] = field(default_factory=list)
    """Errors on its console, exceptions, and what its own policy refused."""
    _last: int = 0
    _loaded: set[str] = field(default_factory=set)
    """Ids of the documents that are loaded."""

    def call(self, method: str, **parameters: Any) -> Any:
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.to_browser.write(json.dumps(message).encode() + b"\0")
        self.to_browser.flush()
        while True:
            got = self._read()
            if got.get("id") == self._last:
                assert "error" not in got, got
                return got["result"]

    def open(self, file: Path) -> None:
        """Open a local file and wait until it is loaded."""
        self.requests.clear()
        self.complaints.clear()
        document = self.call("Page.navigate", url=file.as_uri())["loaderId"]
        while document not in self._loaded:  # the one before may be loaded only now
            self._read()

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression, of a promise what it gives."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def emulate(self, *, media: str = "", scheme: str = "light", width: int = 1280, scripts: bool = True) -> None:
        """Choose the medium (``print``), the colour scheme, the width, and whether JavaScript runs."""
        scheme_feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme_feature])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)

    def _read(self) -> dict[str, Any]:
        raw = bytearray()
        while (byte := self.from_browser.read(1)) != b"\0":
            assert byte, "the browser has ended"
            raw += byte
        message: dict[str, Any] = json.loads(raw)
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Page.lifecycleEvent" and parameters["name"] == "load":
            self._loaded.add(parameters["loaderId"])
        elif method == "Network.requestWillBeSent":
            url = parameters["request"]["url"]
            if not url.startswith(("data:", "blob:")):
                self.requests.append(url)
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.complaints.append(json.dumps(parameters["args"]))
        return message


@contextmanager
def page() -> Iterator[Page]:
    """Give an empty page in a browser of its own. Raises NoBrowserError."""
    command, environment = find()
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        read_by_it, to_browser = os.pipe()
        from_browser, written_by_it = os.pipe()
        # The protocol's descriptors are 3 and 4; a shell puts them there without a fork in this process.
        launch = f'exec 3<&{read_by_it} 4>&{written_by_it}; exec "$0" "$@"'
        process = subprocess.Popen(
            ["bash", "-c", launch, *command, *FLAGS, f"--user-data-dir={home}", "about:blank"],
            env={**os.environ, **environment}, pass_fds=(read_by_it, written_by_it), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        stack.callback(process.wait, 30)
        stack.callback(process.kill)
        os.close(read_by_it)
        os.close(written_by_it)
        writer = stack.enter_context(os.fdopen(to_browser, "wb"))
        reader = stack.enter_context(os.fdopen(from_browser, "rb"))
        opened = Page(writer, reader)
        target = opened.call("Target.createTarget", url="about:blank")["targetId"]
        opened.session = opened.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            opened.call(f"{domain}.enable")
        opened.call("Page.setLifecycleEventsEnabled", enabled=True)
        yield opened


def find() -> tuple[list[str], Mapping[str, str]]:
    """Return the command of a browser and what it needs in its environment. Raises NoBrowserError."""
    for name in NAMES:
        if found := shutil.which(name):
            return [found], {}
    folder = cache_dir() / "browser" / PACKAGE.rpartition("@")[2]
    if not folder.is_dir():
        _fetch(folder)
    environment = {"LD_LIBRARY_PATH": f"{folder / 'lib'}", "FONTCONFIG_PATH": str(folder)}
    return [str(folder / "chromium")], environment


def _fetch(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise NoBrowserError(f"there is none of {', '.join(NAMES)} on PATH, and no npm to fetch one with")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        made = Path(name)
        fetched = subprocess.run(
            [npm, "pack", "--silent", PACKAGE], cwd=made, capture_output=True, text=True, timeout=300, check=False
        )
        if fetched.returncode:
            raise NoBrowserError(f"npm cannot fetch {PACKAGE}: {' '.join(fetched.stderr.split())}")
        (archive,) = made.glob("*.tgz")
        content = archive.read_bytes()
        if base64.b64encode(hashlib.sha512(content).digest()).decode() != SHA512:
            raise NoBrowserError(f"{PACKAGE} is not what was pinned")
        _unpack(content, made / "browser")
        (made / "browser").replace(folder)


def _unpack(content: bytes, folder: Path) -> None:
    folder.mkdir()
    with tarfile.open(fileobj=io.BytesIO(content)) as package:

        def part(name: str) -> BinaryIO:
            found = package.extractfile(f"package/bin/{name}.br")
            assert found is not None, name
            return pyarrow.input_stream(io.BytesIO(found.read()), compression="brotli")

        with part("chromium") as packed, (folder / "chromium").open("wb") as program:
            shutil.copyfileobj(packed, program, 1 << 22)
        (folder / "chromium").chmod(0o755)
        for name in PARTS:
            with part(f"{name}.tar") as packed, tarfile.open(fileobj=io.BytesIO(packed.read())) as files:
                files.extractall(folder, filter="data")
    (folder / "fonts.conf").write_text(FONTS)
