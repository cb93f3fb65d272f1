"""Debian's Chromium, driven over its DevTools protocol. It is missing: an error that names it, never a skipped test."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from websockets.sync.client import ClientConnection, connect

from tests.patience import PATIENCE_S
from tests.servers import program

_LISTENING = re.compile(r"DevTools listening on (ws://\S+)")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


class BrowserTrouble(Exception):
    """The browser refused a command, or a script in the page failed."""


def _connected(address: str) -> ClientConnection:
    # No pings: a browser that gets no processor for a while is slow, not gone.
    return connect(address, max_size=None, open_timeout=PATIENCE_S, ping_interval=None)


class Page:
    """A tab with a file open in it."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self._events: list[dict[str, Any]] = []

    @property
    def problems(self) -> list[str]:
        """What the console complains of: exceptions, refusals of the page's policy, failed requests."""
        self.evaluate("0")  # Events before an answer have arrived when it has.
        found = []
        for event in self._events:
            about = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(about["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded":
                found.append(about["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled":
                found.append(json.dumps(about["args"]))
        return found

    @property
    def requests(self) -> list[str]:
        """Every address that the page asked for."""
        self.evaluate("0")
        sent = [event for event in self._events if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def send(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters or {}}))
        while True:
            message = self._receive()
            if message.get("id") == self._number:
                if "error" in message:
                    raise BrowserTrouble(f"{method}: {message['error']}")
                answer: dict[str, Any] = message["result"]
                return answer

    def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._socket.recv(timeout=PATIENCE_S))
        if "method" in message:
            self._events.append(message)
        return message

    def show(self, file: Path, *, width: int, height: int = 900, dark: bool = False, paper: bool = False) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", {"media": "print" if paper else "", "features": [scheme]})
        self.resize(width, height)
        self.send("Page.navigate", {"url": file.as_uri()})
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._receive()

    def resize(self, width: int, height: int = 900) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", metrics)
        self._frames()

    def _frames(self) -> None:
        """Wait until what has changed is on the screen: observers of sizes are called between two frames."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; it may be a promise."""
        call = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self.send("Runtime.evaluate", call)
        if "exceptionDetails" in answer:
            raise BrowserTrouble(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def move_to(self, selector: str) -> None:
        """Put the pointer on the middle of an element."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f'{element}.scrollIntoView({{block: "center", inline: "center", behavior: "instant"}})')
        self._frames()  # The page hears of having been scrolled before the pointer moves.
        x, y = self.evaluate(
            f"(() => {{ const box = {element}.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        self.send("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})
        self._frames()

    def press(self, key: str) -> None:
        self.send("Input.dispatchKeyEvent", {"type": "keyDown", "key": key, "code": key})
        self.send("Input.dispatchKeyEvent", {"type": "keyUp", "key": key, "code": key})


class Browser:
    """One process for many pages."""

    def __enter__(self) -> Self:
        self._home = Path(tempfile.mkdtemp(prefix="omnirelay-chromium-"))
        command = [program("chromium", fetched_by="scripts/install-servers"), *_FLAGS, f"--user-data-dir={self._home}"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self._address = self._listening()
        self._sockets = ExitStack()
        return self

    def _listening(self) -> str:
        said = []
        assert self._process.stderr is not None
        for line in self._process.stderr:
            said.append(line)
            if found := _LISTENING.search(line):
                return found[1]
        raise AssertionError(f"chromium ended before it listened: {''.join(said)}")

    def open(self, file: Path, *, width: int = 1280, dark: bool = False, paper: bool = False) -> Page:
        with _connected(self._address) as whole:
            whole.send(json.dumps({"id": 1, "method": "Target.createTarget", "params": {"url": "about:blank"}}))
            target = json.loads(whole.recv(timeout=PATIENCE_S))["result"]["targetId"]
        address = re.sub(r"/devtools/.*", f"/devtools/page/{target}", self._address)
        page = Page(self._sockets.enter_context(_connected(address)))
        page.show(file, width=width, dark=dark, paper=paper)
        return page

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sockets.close()
        self._process.terminate()
        try:
            self._process.communicate(timeout=PATIENCE_S)
        finally:
            self._process.kill()
            self._process.wait()
            shutil.rmtree(self._home, ignore_errors=True)
