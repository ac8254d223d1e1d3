"""A headless Chromium for the tests of the page: a tab, driven over the DevTools protocol."""

import base64
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import urllib.request
import wave

from common import arguments
from websockets.sync.client import connect


def parser(description):
    options = arguments(description)
    options.add_argument("--screenshot", help="folder to save pictures of the page in")
    options.add_argument("--chromium", default=os.environ.get("CHROMIUM"), help="the browser's command")
    return options


def options(description):
    return parser(description).parse_args()


FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--autoplay-policy=no-user-gesture-required",
    "--disable-background-networking",
    "--disable-extensions",
    "--no-first-run",
    "--remote-debugging-port=0",
    "--window-size=1000,1000",
]


#: Samples a second of the microphone's file.
RATE = 24000
#: Silence behind each sentence of it, longer than what ends a turn: one of them leaves an answer the time to begin.
PAUSES = (1.2, 2.4)


def microphone(folder, voice_url):
    """Flags for a microphone that hears two sentences of a server's voice with silence behind each, again and again."""
    pieces = []
    texts = ("Good morning. Could you tell me the time?", "Please close the window before you leave.")
    for text, pause in zip(texts, PAUSES, strict=True):
        body = json.dumps({"input": text, "seed": 3, "response_format": "pcm"}).encode()
        headers = {"content-type": "application/json"}
        pieces.append(fetch(urllib.request.Request(f"{voice_url}/v1/audio/speech", body, headers)))
        pieces.append(bytes(2 * int(pause * RATE)))
    return microphone_of(folder, RATE, pieces)


def microphone_of(folder, rate, pieces):
    """Flags for a microphone that hears these samples of 16 bits, one piece after the other, again and again."""
    path = f"{folder}/microphone.wav"
    with wave.open(path, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(b"".join(pieces))
    return [
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",
        f"--use-file-for-fake-audio-capture={path}",
    ]


def fetch(request):
    """What a server answers."""
    with urllib.request.urlopen(request) as answer:
        return answer.read()


def chromium(named):
    names = [named] if named else ["chromium", "chromium-browser", "google-chrome"]
    found = next((path for name in names if (path := shutil.which(name))), None)
    assert found, f"no browser: install one of {names} or set CHROMIUM"
    return found


class Page:
    """A tab, driven over the DevTools protocol."""

    def __init__(self, socket, pictures):
        self.socket, self.count, self.problems, self.requests = socket, 0, [], []
        self.pictures = pictures

    def call(self, method, **params):
        self.count += 1
        self.socket.send(json.dumps({"id": self.count, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv(timeout=60))
            self.note(message)
            if message.get("id") == self.count:
                assert "error" not in message, message
                return message["result"]

    def note(self, message):
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(message["params"]["exceptionDetails"].get("exception", {}).get("description", "?"))
            case "Log.entryAdded" if message["params"]["entry"]["level"] == "error":
                self.problems.append(message["params"]["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, expression, seconds=60):
        end = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < end, f"{expression} did not come true: {self.value('window.__omni')}"
            time.sleep(0.05)

    def place(self, selector):
        """Where the middle of an element is."""
        return self.value(
            f"(() => {{ const r = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )

    def click(self, selector):
        """A real click where the element is."""
        x, y = self.place(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text, field="#text"):
        self.click(field)
        self.value(f"document.querySelector({json.dumps(field)}).select()")
        self.call("Input.insertText", text=text)

    def shown(self, selector):
        return self.value(f"document.querySelector({json.dumps(selector)}).textContent")

    def width(self, pixels):
        """As on a screen of this width."""
        phone = {"width": pixels, "height": 900, "deviceScaleFactor": 2, "mobile": True}
        self.call("Emulation.setDeviceMetricsOverride", **phone)

    def drop(self, selector, files):
        """Drags files from outside over an element, and lets them go there."""
        x, y = self.place(selector)
        data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def picture(self, name):
        if self.pictures:
            data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
            folder = pathlib.Path(self.pictures)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.png").write_bytes(base64.b64decode(data))


@contextlib.contextmanager
def page(args, scheme="light", flags=()):
    """The page of `args.base_url`; nothing may be asked elsewhere, and nothing may go wrong."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        command = [chromium(args.chromium), *FLAGS, *flags, f"--user-data-dir={home}", "about:blank"]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            ready = pathlib.Path(home, "DevToolsActivePort")
            end = time.monotonic() + 60
            while not (ready.exists() and "\n" in ready.read_text()):
                assert browser.poll() is None and time.monotonic() < end, "the browser did not start"
                time.sleep(0.05)
            port = ready.read_text().split("\n")[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as listing:
                tab = next(tab for tab in json.load(listing) if tab["type"] == "page")
            with connect(tab["webSocketDebuggerUrl"], max_size=None) as socket:
                tab = Page(socket, args.screenshot)
                for domain in ("Page", "Runtime", "Log", "Network"):
                    tab.call(f"{domain}.enable")
                tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
                tab.call("Page.navigate", url=f"{args.base_url}/")
                tab.until("window.__omni?.loaded", 30)
                yield tab
                outside = [url for url in tab.requests if not url.startswith((args.base_url, "data:", "blob:", "about:"))]
                assert not outside, f"the page asked elsewhere: {outside}"
                assert not tab.problems, tab.problems
        finally:
            browser.terminate()
            browser.wait()


def heard(tab):
    """Waits until all is played; the figures must be those of speech."""
    tab.until("['done', 'failed'].includes(__omni.state)", 90)
    omni = tab.value("__omni")
    assert omni["state"] == "done", omni
    assert omni["peak"] > 0.01, f"silent: {omni}"
    assert omni["samplesPlayed"] == omni["samplesReceived"] > 4800, omni
    shown = tab.value("document.querySelector('#ttfa').textContent")
    assert shown.endswith(" ms") and omni["ttfaMs"] > 0, shown
    return f"first audio after {omni['ttfaMs']:.0f} ms, {omni['samplesPlayed']} samples played, peak {omni['peak']:.2f}, {omni['underruns']} underruns"
