"""A headless Chromium through its own WebDriver (https://www.w3.org/TR/webdriver2), without Selenium."""

import json
import re
import shutil
import subprocess
import urllib.request
from contextlib import contextmanager

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
FLAGS = "--headless --no-sandbox --disable-gpu --disable-background-networking --no-first-run"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The key of an element's id, which the specification fixes."""


class Browser:
    """One window; what it answers is what a reader would see."""

    def __init__(self, session):
        self._session = session

    def _post(self, command, **body):
        return call(f"{self._session}/{command}", body)

    def open(self, path, *, width=1280, dark=False):
        """Opens a file at a width of the window, in light or dark colours."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.devtools("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])
        self._post("url", url=path if str(path).startswith("http") else path.as_uri())

    def devtools(self, command, **params):
        return self._post("goog/cdp/execute", cmd=command, params=params)

    def js(self, expression):
        """Returns the value of an expression."""
        return self._post("execute/sync", script=f"return {expression}", args=[])

    def text(self, selector):
        """Returns what an element shows."""
        return self.js(f"document.querySelector({json.dumps(selector)}).innerText")

    def _element(self, selector):
        """Scrolls an element to the middle of the window, where nothing lies over it."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.js(f"{element}.scrollIntoView({{block: 'center'}})")
        return self._post("element", using="css selector", value=selector)[ELEMENT]

    def click(self, selector):
        self._post(f"element/{self._element(selector)}/click")

    def write(self, selector, text):
        self._post(f"element/{self._element(selector)}/value", text=text)

    def hover(self, selector, *, drag=None):
        """Moves the pointer to the middle of an element; holds it down for `drag` pixels."""
        origin = {ELEMENT: self._element(selector)}
        moves = [{"type": "pointerMove", "duration": 0, "x": 0, "y": 0, "origin": origin}]
        if drag:
            end = {"type": "pointerMove", "duration": 50, "x": drag, "y": 0, "origin": origin}
            moves += [{"type": "pointerDown", "button": 0}, end, {"type": "pointerUp", "button": 0}]
        mouse = {"type": "pointer", "id": "mouse", "actions": moves}
        self._post("actions", actions=[mouse])

    def errors(self):
        """Returns what the page complained of since it was last asked."""
        return [entry["message"] for entry in self._post("se/log", type="browser")]


def call(url, body=None, method=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise AssertionError(json.load(error)["value"]["message"]) from error


@contextmanager
def browser():
    """Starts a browser, and ends it with the block."""
    with subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True) as driver:
        try:
            lines = (re.search(r"successfully on port (\d+)", line) for line in driver.stdout)
            port = next(filter(None, lines))[1]
            options = {"binary": CHROMIUM, "args": FLAGS.split()}
            wishes = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            root = f"http://127.0.0.1:{port}/session"
            session = call(root, {"capabilities": {"alwaysMatch": wishes}})
            url = f"{root}/{session['sessionId']}"
            try:
                yield Browser(url)
            finally:
                call(url, method="DELETE")
        finally:
            driver.terminate()
