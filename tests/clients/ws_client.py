"""Text in word by word over the WebSocket, speech out before the text is complete; cancel; a second utterance."""

import json
import time

from common import arguments, check_speech, pcm16, run
from websockets.sync.client import connect

args = arguments(__doc__).parse_args()
URL = args.base_url.replace("http", "ws", 1) + "/v1/audio/speech/stream"
SENTENCES = ["The sun rises slowly over the quiet hills.", "Then the birds begin to sing in the old trees."]


class Session:
    def __enter__(self):
        self.connection = connect(URL, max_size=None)
        self.socket = self.connection.__enter__()
        created = self.event()
        assert created["type"] == "session.created", created
        self.rate = created["sample_rate"]
        return self

    def __exit__(self, *why):
        self.connection.__exit__(*why)

    def send(self, kind, **fields):
        self.socket.send(json.dumps({"type": kind, **fields}))

    def event(self, timeout=60):
        """The next JSON event; audio before it is returned by `audio`."""
        self.audio = b""
        while isinstance(message := self.socket.recv(timeout=timeout), bytes):
            self.audio += message
        return json.loads(message)

    def expect(self, kind):
        event = self.event()
        assert event["type"] == kind, event
        return event


def speech_comes_before_the_text_is_complete():
    with Session() as session:
        session.send("session.config", response_format="pcm", seed=3)
        session.expect("session.updated")
        begun = time.monotonic()
        first, *rest = SENTENCES[1].split()
        for word in [*SENTENCES[0].split(), first]:
            session.send("input.text", text=word + " ")
        # The rest is held back until speech has come: a server that waited for it would wait for ever.
        session.expect("audio.start")
        audio = session.socket.recv(timeout=60)
        took = time.monotonic() - begun
        for word in rest:
            session.send("input.text", text=word + " ")
        session.send("input.done")
        done = session.expect("audio.done")
        audio += session.audio
        session.expect("session.done")
        assert done["samples"] * 2 == len(audio) and done["ttfa_ms"] <= done["total_ms"], done
        note = check_speech("pcm", pcm16(audio), session.rate, 3)
        return f"{note}, first audio after {took * 1000:.0f} ms, before {len(rest)} of the words were sent"


def cancel_stops_and_the_next_utterance_speaks():
    with Session() as session:
        session.send("input.text", text=" ".join(SENTENCES * 3))
        session.send("input.done")
        session.expect("audio.start")
        session.socket.recv(timeout=60)
        begun = time.monotonic()
        session.send("input.cancel")
        cancelled = session.expect("audio.cancelled")
        took = time.monotonic() - begun
        assert cancelled["utterance"] == 1 and took < 2, (cancelled, took)
        session.send("input.text", text="And here is another sentence.")
        session.send("input.done")
        assert session.expect("audio.start")["utterance"] == 2
        session.expect("audio.done")
        check_speech("pcm", pcm16(session.audio), session.rate)
        session.expect("session.done")
        session.send("session.close")
        assert session.expect("session.closed")["utterances"] == 2
        return f"cancelled in {took * 1000:.0f} ms"


def a_wav_session_sends_wav():
    with Session() as session:
        session.send("session.config", response_format="wav")
        session.expect("session.updated")
        session.send("input.text", text="Hello there, my friend.")
        session.send("input.done")
        session.expect("audio.start")
        session.expect("audio.done")
        assert session.audio[:4] == b"RIFF"
        note = check_speech("wav", pcm16(session.audio[44:]), session.rate)
        session.expect("session.done")
        return note


def mistakes_do_not_end_the_session():
    with Session() as session:
        session.socket.send("this is not JSON")
        assert session.expect("error")["code"] == "invalid_json"
        session.send("session.config", voice="nobody")
        assert session.expect("error")["param"] == "voice"
        session.send("input.text", text="Still here.")
        session.send("input.done")
        session.expect("audio.start")
        session.expect("audio.done")
        session.expect("session.done")


run(
    [
        speech_comes_before_the_text_is_complete,
        cancel_stops_and_the_next_utterance_speaks,
        a_wav_session_sends_wav,
        mistakes_do_not_end_the_session,
    ]
)
