"""Headless Chromium, driven over a pipe by the DevTools protocol: no driver, and no package, is needed for that."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import time
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

WAIT_S: Final = 30.0
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS: Final = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-proxy-server",
)


def chromium_path() -> str | None:
    """Return where Chromium is, as Debian's package installs it; None where it is not."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


class Chromium:
    """One browser with one page. errors: what its console said was wrong; requested: all addresses it asked for."""

    def __init__(self, path: str, profile: Path) -> None:
        self.errors: list[str] = []
        self.requested: list[str] = []
        self._path = path
        self._profile = profile
        self._events: list[str] = []
        self._answers: dict[int, dict[str, Any]] = {}
        self._number = 0
        self._buffer = b""
        self._session: str | None = None

    def __enter__(self) -> Self:
        commands, self._commands = (_away_from_low_numbers(end) for end in os.pipe())
        self._told, told = (_away_from_low_numbers(end) for end in os.pipe())
        null = os.open(os.devnull, os.O_RDWR)
        actions = [
            (os.POSIX_SPAWN_DUP2, null, 0),
            (os.POSIX_SPAWN_DUP2, null, 1),
            (os.POSIX_SPAWN_DUP2, null, 2),
            (os.POSIX_SPAWN_DUP2, commands, 3),
            (os.POSIX_SPAWN_DUP2, told, 4),
        ]
        arguments = [self._path, *_ARGUMENTS, f"--user-data-dir={self._profile}", "about:blank"]
        self._pid = os.posix_spawn(self._path, arguments, os.environ, file_actions=actions, setsid=True)
        for end in (commands, told, null):
            os.close(end)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._commands)
        os.close(self._told)

    def window(self, width: int, height: int, *, is_dark: bool = False) -> None:
        """Set the size of the window, and the scheme of colours that its reader prefers."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        """Open a page, and wait until all of it is loaded."""
        self._while_loading(lambda: self._call("Page.navigate", url=url))

    def click(self, selector: str, *, loads: bool = False) -> None:
        """Click on the first element of a CSS selector; loads: and wait for the page that this leads to."""

        def act() -> None:
            assert self.value(f"!!document.querySelector({json.dumps(selector)})"), f"no {selector} in the page"
            self.value(f"document.querySelector({json.dumps(selector)}).click()")

        if loads:
            self._while_loading(act)
        else:
            act()

    def value(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Wait until an expression is true in the page."""
        ends = time.monotonic() + WAIT_S
        while not self.value(script):
            assert time.monotonic() < ends, f"never true: {script}"
            time.sleep(0.05)

    def picture(self) -> bytes:
        """Return what is seen, as PNG."""
        return b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def _while_loading(self, act: Callable[[], object]) -> None:
        self._events.clear()
        act()
        ends = time.monotonic() + WAIT_S
        while "Page.loadEventFired" not in self._events:
            assert time.monotonic() < ends, "the page was not loaded in time"
            self._read(0.2)

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        ends = time.monotonic() + WAIT_S
        while number not in self._answers:
            assert time.monotonic() < ends, f"Chromium did not answer {method}"
            self._read(0.2)
        answer = self._answers.pop(number)
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self, timeout_s: float) -> None:
        if not select.select([self._told], [], [], timeout_s)[0]:
            return
        data = os.read(self._told, 1 << 20)
        assert data, "Chromium has ended"
        *messages, self._buffer = (self._buffer + data).split(b"\0")
        for message in messages:
            self._take(json.loads(message))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
            return
        method, params = message["method"], message.get("params", {})
        self._events.append(method)
        if method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(params["args"]))


def _away_from_low_numbers(descriptor: int) -> int:
    """Return another number for a descriptor: 3 and 4 become Chromium's own."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved
