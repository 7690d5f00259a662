"""A real browser for tests: headless Chromium, driven over a pipe by its own protocol. Nothing needs to be installed
beside the browser.

The protocol: one JSON message after another, each ended by a zero byte, on file descriptors 3 and 4 of the browser
(``--remote-debugging-pipe``).
"""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WAIT_S = 60.0
_FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--no-first-run", "--disable-gpu",
    "--disable-dev-shm-usage", "--disable-extensions", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--no-proxy-server", "--hide-scrollbars", "--mute-audio", "--lang=en",
    "--force-device-scale-factor=1",
)  # fmt: skip


class PageFailedError(AssertionError):
    """The page, or the browser, did something that it must not."""


def browser_file() -> str:
    """The browser. Skips the test where there is none, but fails in continuous integration, which must have one."""
    found = os.environ.get("KVEIK_BROWSER") or next(filter(None, map(shutil.which, NAMES)), "")
    if not found:
        reason = "no Chromium found (looked for " + ", ".join(NAMES) + "): install chromium, or set KVEIK_BROWSER"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


class Browser:
    """One browser with one page."""

    def __init__(self, file: str, profile: Path) -> None:
        to_browser, self._send_fd = os.pipe()
        self._receive_fd, from_browser = os.pipe()
        self._log = (profile / "browser.log").open("ab")
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec 3<&{to_browser} 4>&{from_browser}; exec "$@"', "browser", file, *_FLAGS,
             f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_browser, from_browser), stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.complaints: list[str] = []
        self.asked: list[str] = []
        target = next(t for t in self._call("Target.getTargets")["targetInfos"] if t["type"] == "page")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    # -- what tests do --------------------------------------------------------------------------

    def open(self, url: str) -> None:
        """Show a page, and wait until it is loaded."""
        self._call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; promises are waited for."""
        answer = self._call(
            "Runtime.evaluate",
            expression=script,
            returnByValue=True,
            awaitPromise=True,
            allowUnsafeEvalBlockedByCSP=False,
        )
        if "exceptionDetails" in answer:
            raise PageFailedError(f"{script}: {_thrown(answer['exceptionDetails'])}")
        return answer["result"].get("value")

    def wait_for(self, script: str, seconds: float = WAIT_S) -> Any:
        """Wait until an expression is true; its value."""
        until_s = time.monotonic() + seconds
        while not (value := self.run(script)):
            if time.monotonic() > until_s:
                shown = self.run("document.body.innerText")
                raise PageFailedError(f"waited {seconds:g} s in vain for {script}; the page shows: {shown}")
            time.sleep(0.05)
        return value

    def text(self, selector: str = "body") -> str:
        """The text that an element shows."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def key(self, key: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **text, **_key_code(key))

    def write(self, text: str) -> None:
        """Type text where the focus is."""
        self._call("Input.insertText", text=text)

    def move_mouse(self, x: float, y: float) -> None:
        """Move the mouse, in CSS pixels of the window."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def look(self, *, dark: bool = False, width: int = 1360, height: int = 900, scale: float = 1.0) -> None:
        """Choose the colour scheme and the size of the window."""
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self._call("Emulation.setEmulatedMedia", features=features)
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def picture(self, file: Path, *, whole: bool = True) -> None:
        """Save what is shown as PNG; the whole page or the window."""
        shot = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        if whole:
            size = self._call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
            shot = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))

    def accessibility_tree(self) -> list[dict[str, Any]]:
        """What a screen reader gets: roles and names."""
        nodes: list[dict[str, Any]] = self._call("Accessibility.getFullAXTree")["nodes"]
        return nodes

    # -- the protocol ---------------------------------------------------------------------------

    def _call(self, method: str, **parameters: Any) -> Mapping[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send_fd, json.dumps(message).encode() + b"\0")
        until_s = time.monotonic() + WAIT_S
        while True:
            answer = self._receive(until_s)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise PageFailedError(f"{method}: {answer['error'].get('message')}")
                result: Mapping[str, Any] = answer["result"]
                return result
            self._notice(answer)

    def _receive(self, until_s: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._receive_fd], [], [], max(0.0, until_s - time.monotonic()))
            data = os.read(self._receive_fd, 1 << 20) if ready else b""
            if not data:
                raise PageFailedError("the browser ended" if ready else f"the browser said nothing for {WAIT_S:g} s")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _notice(self, event: Mapping[str, Any]) -> None:
        """Collect what the page asked for and what went wrong in it."""
        given = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.asked.append(given["request"]["url"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(_thrown(given["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and given["entry"]["level"] == "error":
            if given["entry"]["source"] != "network":  # a router that is away is nothing wrong with the page
                self.complaints.append(given["entry"]["text"])
        elif event.get("method") == "Page.javascriptDialogOpening":
            self.complaints.append(f"a dialog: {given['message']}")

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(20)
        for descriptor in (self._send_fd, self._receive_fd):
            os.close(descriptor)
        self._log.close()


def _thrown(details: Mapping[str, Any]) -> str:
    return str(details.get("exception", {}).get("description") or details.get("text"))


def _key_code(key: str) -> dict[str, int]:
    codes = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35}
    return {"windowsVirtualKeyCode": codes[key]} if key in codes else {}


@contextlib.contextmanager
def running_browser() -> Iterator[Browser]:
    """A browser with a profile of its own, which is deleted afterwards."""
    profile = Path(tempfile.mkdtemp(prefix="kveik-browser-"))
    try:
        browser = Browser(browser_file(), profile)
        try:
            yield browser
        finally:
            browser.close()
    finally:
        shutil.rmtree(profile, ignore_errors=True)
