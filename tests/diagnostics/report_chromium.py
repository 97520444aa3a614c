"""Headless Chromium, driven over its pipe: what a page says on its console, asks of the network, and looks like."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

# Chromium as a snap, which comes by the last of these names, does not see files in /tmp.
NAMES = ("google-chrome", "google-chrome-stable", "chrome", "chrome-headless-shell", "chromium", "chromium-browser")

_SILENCE_S = 60


def find_chromium() -> str | None:
    """Its path; CHROMIUM names another."""
    return os.environ.get("CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Browser:
    """One tab. `complaints`: from the console, exceptions and refusals. `requests`: addresses asked for."""

    _read: int
    _write: int
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    _pending: bytes = b""
    _last: int = 0
    _session: str | None = None

    def attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer; what happens meanwhile is noted."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, path: Path, *, width: int, dark: bool = False, script: bool = True) -> None:
        """Show a file at this many pixels of width, and wait for it."""
        self.complaints.clear()
        self.requests.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call("Page.navigate", url=path.as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def value(self, expression: str) -> Any:
        """Of JavaScript, waited for if it is a promise; it runs from outside even where the page's own scripts are off."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            assert wait([self._read], _SILENCE_S), f"the browser has been silent for {_SILENCE_S} s"
            more = os.read(self._read, 1 << 20)
            assert more, "the browser went away"
            self._pending += more
        text, self._pending = self._pending.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.consoleAPICalled":
                self.complaints.append(" ".join(str(one.get("value")) for one in params["args"]))
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"]))
            case "Log.entryAdded":
                self.complaints.append(params["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])


@contextlib.contextmanager
def browser(chromium: str) -> Iterator[Browser]:
    """A browser with a profile of its own, ended with the context."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--no-first-run",
            "--disable-dev-shm-usage",
        ]
        options += ["--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"]
        # Chromium reads from descriptor 3 and writes to 4, which a shell can give it wherever ours lie.
        command = f'exec "$@" 3<&{to_read} 4>&{from_write}'
        process = subprocess.Popen(
            ["bash", "-c", command, "bash", chromium, *options, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_read, from_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(from_write)
        try:
            tab = Browser(from_read, to_write)
            tab.attach()
            yield tab
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(from_read)
            os.close(to_write)
            time.sleep(0.1)  # its helpers still write to the profile
