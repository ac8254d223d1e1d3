"""The page in headless Chromium, whose microphone is a file: talks with a model that hears.

Needs two servers: one that hears, and one whose voice is understood as speech, which speaks the file.
"""

import functools
import tempfile

import chromium
from common import run

parser = chromium.parser(__doc__)
parser.add_argument("--voice-url", required=True, help="where the server is that speaks into the microphone")
args = parser.parse_args()
page = functools.partial(chromium.page, args)

def microphone(folder):
    return chromium.microphone(folder, args.voice_url)


def begin(tab):
    tab.click("input[value=talk] + span")
    tab.click("#speak")
    tab.until("__omni.talk && document.querySelector('#status').textContent !== 'Connecting.'")


def who_speaks_is_answered_and_who_goes_on_interrupts():
    with tempfile.TemporaryDirectory() as folder, page("light", microphone(folder)) as tab:
        begin(tab)
        tab.until("talk.userSpeaks")
        tab.picture("talk-user")
        tab.until("__omni.talk.answers > 0")
        tab.until("__omni.samplesPlayed > 2400")
        tab.picture("talk-model")
        # Which answers of the small model are long enough to be spoken into is chance, so the user goes on.
        tab.until("__omni.talk.interruptions > 0 && __omni.talk.answers > 1", 150)
        tab.until("document.querySelectorAll('#captions li.user').length > 1")
        talk = tab.value("__omni.talk")
        assert talk["level"] > 0.05 and talk["turns"] > 1 and talk["latencyMs"] > 0, talk
        assert talk["truncatedMs"] > 0 and 0 <= talk["cutMs"] < 2000, talk
        assert tab.shown("#cut").endswith(" ms"), tab.shown("#cut")
        assert talk["way"] == ("call" if tab.value("calls") else "socket"), talk
        assert "interrupted after" in tab.shown("#captions"), tab.shown("#captions")
        tab.picture("talk-interrupted")
        tab.width(390)
        tab.until("innerWidth === 390")
        assert tab.value("document.documentElement.scrollWidth") == 390, "the page is wider than a phone"
        tab.picture("talk-phone")
        tab.click("#stop")
        assert tab.value("__omni.state") == "stopped" and tab.value("talk.microphone") is None
        way = tab.shown("#way")
        return f"{way}: {talk['latencyMs']:.0f} ms to the first sound, interrupted within {talk['cutMs']:.0f} ms"


def what_is_written_interrupts_too():
    with tempfile.TemporaryDirectory() as folder, page("dark", microphone(folder)) as tab:
        begin(tab)
        tab.until("__omni.talk.answers > 0")
        before = tab.value("__omni.talk")
        tab.type("What did you say?", "#words")
        tab.call("Input.dispatchKeyEvent", type="keyDown", key="Enter")
        tab.until(f"__omni.talk.answers > {before['answers']}")
        assert "What did you say?" in tab.shown("#captions"), tab.shown("#captions")
        tab.picture("talk-dark")
        tab.click("input[value=speak] + span")
        assert tab.value("__omni.state") == "stopped", "another mode ends the conversation"


def a_call_that_no_packet_comes_through_goes_by_the_socket():
    with page("light", ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]) as tab:
        if not tab.value("calls"):
            return "this server takes none"
        # As behind a router that lets no UDP through: the answer's address is nowhere.
        tab.value("""{
          const set = RTCPeerConnection.prototype.setRemoteDescription;
          RTCPeerConnection.prototype.setRemoteDescription = function ({ type, sdp }) {
            return set.call(this, { type, sdp: sdp.replace(/a=candidate.*/g, "") });
          };
        }""")
        begin(tab)
        tab.until("__omni.talk.way === 'socket'")
        tab.type("Hello", "#words")
        tab.click("#send")
        tab.until("__omni.talk.answers > 0")
        tab.until("__omni.samplesPlayed > 2400")
        assert tab.shown("#way") == "over a WebSocket", tab.shown("#way")


def a_microphone_that_is_refused_leaves_the_keyboard():
    with page("dark", ["--use-fake-device-for-media-stream", "--deny-permission-prompts"]) as tab:
        begin(tab)
        assert "microphone was refused" in tab.shown("#status"), tab.shown("#status")
        tab.type("Hello", "#words")
        tab.click("#send")
        tab.until("__omni.talk.answers > 0")
        tab.picture("talk-refused")


run(
    [
        who_speaks_is_answered_and_who_goes_on_interrupts,
        what_is_written_interrupts_too,
        a_call_that_no_packet_comes_through_goes_by_the_socket,
        a_microphone_that_is_refused_leaves_the_keyboard,
    ]
)
