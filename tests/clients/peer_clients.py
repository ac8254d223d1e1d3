"""The routes as the example clients of vllm-omni use them: the same fields out, the same keys read."""

import base64
import io
import json
import urllib.error
import urllib.request

import soundfile
from common import arguments, check_speech, pcm16, run
from websockets.sync.client import connect

args = arguments(__doc__).parse_args()
TEXT = "Hello, how are you today? It is nice to see you again."


def get(path):
    with urllib.request.urlopen(args.base_url + path, timeout=60) as answer:
        return json.load(answer)


def post(path, payload):
    headers = {"Content-Type": "application/json", "Authorization": "Bearer EMPTY"}
    request = urllib.request.Request(args.base_url + path, json.dumps(payload).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return answer.headers, answer.read()


MODEL = get("/v1/models")["data"][0]["id"]
VOICE = get("/v1/audio/voices?legacy=true")["voices"][0]


def check_file(data, what, at_least_s=1):
    samples, rate = soundfile.read(io.BytesIO(data), dtype="int16")
    return check_speech(what, pcm16(samples.tobytes()), rate, at_least_s)


def speech_as_the_speech_client_asks():
    payload = {"model": MODEL, "input": TEXT, "voice": VOICE.capitalize(), "response_format": "wav"}
    payload |= {"task_type": "CustomVoice", "language": "English", "max_new_tokens": 2048}
    headers, data = post("/v1/audio/speech", payload)
    assert headers["content-type"] == "audio/wav"
    return check_file(data, "wav")


def a_batch_as_the_batch_client_asks():
    notes = []
    for form in ("wav", "mp3", "flac", "opus", "pcm"):
        payload = {"items": [{"input": "First sentence."}, {"input": "Second sentence."}, {"input": ""}]}
        payload |= {"response_format": form, "voice": VOICE, "language": "Auto"}
        answer = json.loads(post("/v1/audio/speech/batch", payload)[1])
        assert (answer["total"], answer["succeeded"], answer["failed"]) == (3, 2, 1), answer
        for result in answer["results"]:
            if result["status"] != "success":
                assert result["index"] == 2 and result["error"], result
                continue
            data = base64.b64decode(result["audio_data"])
            if form != "pcm":
                notes.append(check_file(data, form, 0.3))
            usage = result["usage"]
            assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"], usage
            assert usage["input_token_details"]["audio_tokens"] == 0, usage
    return notes[0]


def a_session_as_the_websocket_client_asks():
    url = args.base_url.replace("http", "ws", 1) + "/v1/audio/speech/stream"
    config = {"type": "session.config", "speaker": VOICE, "task_type": "CustomVoice", "language": "Auto"}
    config |= {"response_format": "wav", "speed": 1.0}
    with connect(url, max_size=None) as socket:
        for _ in range(2):  # the connection stays open between utterances
            socket.send(json.dumps(config))
            words = TEXT.split(" ")
            for at, word in enumerate(words):
                text = word + (" " if at < len(words) - 1 else "")
                socket.send(json.dumps({"type": "input.text", "text": text}))
            socket.send(json.dumps({"type": "input.done"}))
            chunks = []
            while True:
                message = socket.recv(timeout=60)
                if isinstance(message, bytes):
                    chunks.append(message)
                    continue
                event = json.loads(message)
                assert event["type"] != "error", event
                if event["type"] == "audio.start":
                    assert event["sentence_index"] == 0 and TEXT.startswith(event["sentence_text"]), event
                    chunks = []
                elif event["type"] == "audio.done":
                    assert event["sentence_index"] == 0 and event["error"] is False, event
                    assert event["total_bytes"] == sum(map(len, chunks)), event
                elif event["type"] == "session.done":
                    assert event["total_sentences"] == 1, event
                    break
            note = check_file(b"".join(chunks), "wav")
        socket.send(json.dumps({"type": "session.close"}))
        return note


def mistakes_are_told():
    for payload, param in [({"response_format": "aac"}, "response_format"), ({"ref_audio": "http://a/b"}, "ref_audio")]:
        try:
            post("/v1/audio/speech", {"input": TEXT, "voice": VOICE} | payload)
        except urllib.error.HTTPError as error:
            assert error.code == 400 and json.load(error)["error"]["param"] == param
        else:
            raise AssertionError(f"{payload} was accepted")


run(
    [
        speech_as_the_speech_client_asks,
        a_batch_as_the_batch_client_asks,
        a_session_as_the_websocket_client_asks,
        mistakes_are_told,
    ]
)
