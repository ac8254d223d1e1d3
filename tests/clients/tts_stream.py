"""Qwen3-TTS over the WebSocket, with another voice for each utterance, text coming word by word."""

import json

from common import run
from tts_common import FRAME, arguments, check_frames, data_url, hum, post
from websockets.sync.client import connect

args = arguments(__doc__).parse_args()
TEXT = "Hello world. How are you? I am fine."
FRAMES = 12
LIMIT = {"max_new_tokens": FRAMES, "seed": 4}


class Session:
    def __init__(self, url):
        self.connection = connect(url.replace("http", "ws", 1) + "/v1/audio/speech/stream", max_size=None)

    def __enter__(self):
        self.socket = self.connection.__enter__()
        self.expect("session.created")
        return self

    def __exit__(self, *why):
        self.connection.__exit__(*why)

    def send(self, kind, **fields):
        self.socket.send(json.dumps({"type": kind, **fields}))

    def event(self):
        """The next JSON event; the audio before it is in `audio`."""
        self.audio = b""
        while isinstance(message := self.socket.recv(timeout=60), bytes):
            self.audio += message
        return json.loads(message)

    def expect(self, kind):
        event = self.event()
        assert event["type"] == kind, event
        return event

    def configure(self, **fields):
        self.send("session.config", **{**LIMIT, **fields})
        return self.expect("session.updated")

    def speak(self, *pieces):
        for piece in pieces:
            self.send("input.text", text=piece)
        self.send("input.done")
        self.expect("audio.start")
        self.expect("audio.done")
        audio = self.audio
        self.expect("session.done")
        return audio


def the_options_of_the_speech_route_hold_for_utterances():
    with Session(args.base_url) as session:
        said = []
        for options in [
            {"speaker": "Vivian", "task_type": "CustomVoice", "language": "Auto"},
            {"voice": "ryan", "language": "English"},
            {"voice": "ryan", "language": "English", "instructions": "Whisper."},
        ]:
            session.configure(response_format="pcm", **options)
            said.append(session.speak("One sentence."))
            check_frames(str(options), said[-1], FRAMES)
        assert len(set(said)) == 3, "some sound the same"


def word_by_word_is_as_at_once():
    with Session(args.base_url) as session:
        session.configure(voice="vivian", response_format="pcm", max_new_tokens=40)
        at_once = session.speak(TEXT)
        words = session.speak(*(word + " " for word in TEXT.split()))
        assert at_once and len(at_once) % (2 * FRAME) == 0
        assert words and len(words) % (2 * FRAME) == 0


def sentences_may_be_committed():
    with Session(args.base_url) as session:
        session.configure(voice="vivian", response_format="pcm", streaming_mode="sentence_commit")
        for index, sentence in enumerate(["Hello there. ", "And again."]):
            session.send("input.text", text=sentence)
            session.send("input.commit", commit_id=f"sentence-{index}")
        session.send("input.done")
        committed = []
        while (event := session.event())["type"] != "session.done":
            committed += [(event["commit_id"], event["sentence_index"])] if event["type"] == "input.committed" else []
        assert committed == [("sentence-0", 0), ("sentence-1", 1)], committed


def every_utterance_may_have_a_voice_of_its_own():
    with Session(args.clone_url) as session:
        said = []
        for number in (1, 8):
            session.configure(response_format="pcm", task_type="Base", ref_audio=data_url(hum(number)))
            said.append(session.speak("One sentence."))
        session.configure(response_format="pcm", ref_audio=data_url(hum(1)), ref_text="La la la.")
        said.append(session.speak("One sentence."))
        for audio in said:
            check_frames("clone", audio, FRAMES)
        assert len(set(said)) == 3, "some sound the same"


def a_file_comes_in_the_format_that_was_asked_for():
    with Session(args.base_url) as session:
        for form, magic in [("wav", b"RIFF"), ("flac", b"fLaC"), ("opus", b"OggS")]:
            session.configure(voice="vivian", response_format=form)
            assert session.speak("One sentence.").startswith(magic), form


def what_cannot_be_done_is_told_and_the_session_goes_on():
    with Session(args.base_url) as session:
        session.send("session.config", voice="nobody")
        assert session.expect("error")["param"] == "voice"
        session.configure(voice="vivian", response_format="pcm")
        check_frames("after an error", session.speak("One sentence."), FRAMES)


run(
    [
        the_options_of_the_speech_route_hold_for_utterances,
        word_by_word_is_as_at_once,
        sentences_may_be_committed,
        every_utterance_may_have_a_voice_of_its_own,
        a_file_comes_in_the_format_that_was_asked_for,
        what_cannot_be_done_is_told_and_the_session_goes_on,
    ]
)
