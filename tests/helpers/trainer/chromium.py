"""A headless Chromium, driven over its DevTools protocol: enough to open a page, look at it and use it."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.request

from websockets.sync.client import connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # it refuses to run as root with one; it only ever sees our own page
    "--disable-dev-shm-usage",  # containers have 64 MB of it
    "--use-gl=angle",
    "--use-angle=swiftshader",  # WebGL without a GPU
    "--enable-unsafe-swiftshader",
    "--hide-scrollbars",
    "--mute-audio",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--remote-debugging-port=0",
)


def executable():
    """Where Chromium is; None where there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Chromium:
    """One page. Use as a context manager.

    Args:
        profile: An empty directory for it to write to.
        size: Width and height of the page, in its own pixels.
        scale: Pixels drawn for one of them: what is drawn without a GPU takes its time pixel by pixel.
    """

    def __init__(self, profile, size=(1280, 800), scale=1.0):
        self.errors = []
        self._count = 0
        command = [executable(), *OPTIONS, f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}"]
        self._process = subprocess.Popen(
            [*command, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            port = wait_for(lambda: _port(profile), 60, "Chromium to listen")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
                page = next(target for target in json.load(answer) if target["type"] == "page")
            self._socket = connect(page["webSocketDebuggerUrl"], max_size=None, open_timeout=60)
            self.call("Page.enable")
            self.call("Runtime.enable")
            self.call("Emulation.setFocusEmulationEnabled", enabled=True)  # viser connects a page that has the focus
            metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": scale, "mobile": False}
            self.call("Emulation.setDeviceMetricsOverride", **metrics)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait(30)

    def call(self, method, **parameters):
        """One command of the protocol; the page's uncaught errors that arrive meanwhile are kept."""
        self._count += 1
        self._socket.send(json.dumps({"id": self._count, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(timeout=120))
            if answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(answer["params"]["exceptionDetails"])
            if answer.get("id") == self._count:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def open(self, address):
        self.call("Page.navigate", url=address)

    def evaluate(self, expression):
        """The value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def screenshot(self):
        """PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def press(self, key, code):
        """A key, into what has the focus."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)


def _port(profile):
    file = profile / "DevToolsActivePort"
    lines = file.read_text().splitlines() if file.exists() else []
    return int(lines[0]) if lines else None


def wait_for(condition, seconds, what):
    """The first true value of condition()."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise TimeoutError(f"waited {seconds} s for {what}")
