"""Requests of clients that a small machine does not run, as their sources write them: replayed.json.

`$MODEL` and `$VOICE` stand for what the server serves. Each answer has a status, a media type, and what the client reads
of it: paths in the JSON (`has`; `texts` are strings), or speech in a file, in bare samples, or in a stream of chunks that
`modality` tells apart.
"""

import base64
import http.client
import io
import json
import pathlib
import urllib.parse

import soundfile
from common import arguments, check_speech, pcm16, run

args = arguments(__doc__).parse_args()
ADDRESS = urllib.parse.urlsplit(args.base_url).netloc
CASES = json.loads(pathlib.Path(__file__).with_name("replayed.json").read_text())


def send(case):
    body = None if case.get("body") is None else json.dumps(case["body"])
    connection = http.client.HTTPConnection(ADDRESS, timeout=60)
    try:
        connection.request(case["method"], case["path"], body, case["headers"])
        answer = connection.getresponse()
        return answer.status, answer.headers["content-type"].split(";")[0], answer.read()
    finally:
        connection.close()


def found(value, path):
    for step in path.split("."):
        value = value[int(step)] if step.isdigit() else value[step]
    return value


def of_file(data):
    samples, rate = soundfile.read(io.BytesIO(data), dtype="int16")
    return pcm16(samples.tobytes()), rate


def of_chunks(data):
    """As the load generator of vllm-omni reads a stream: base64 of a wav file in the content of each chunk of audio."""
    events = [line.removeprefix("data: ") for line in data.decode().split("\n\n") if line]
    assert events.pop() == "[DONE]", "no end"
    text, samples, rate = "", pcm16(b""), None
    for chunk in map(json.loads, events):
        content = (chunk["choices"][0]["delta"].get("content") if chunk["choices"] else None) or ""
        if chunk["modality"] == "text":
            text += content
        elif content:
            more, rate = of_file(base64.b64decode(content))
            samples.extend(more)
    assert text.strip(), "no text"
    assert json.loads(events[-1])["usage"]["completion_tokens"] > 0, "no usage"
    return samples, rate


SPEECH = {"file": of_file, "pcm": lambda data: (pcm16(data), 24000), "modality": of_chunks}


def replay(case, names):
    case = json.loads(json.dumps(case).replace("$MODEL", names["$MODEL"]).replace("$VOICE", names["$VOICE"]))
    expected = case["answer"]
    status, media_type, data = send(case)
    assert (status, media_type) == (expected["status"], expected["type"]), (status, media_type, data[:300])
    for path in expected.get("has", []):
        assert found(json.loads(data), path) is not None, path
    for path in expected.get("texts", []):
        assert isinstance(found(json.loads(data), path), str), path
    assert expected.get("says", "").encode() in data, data[:300]
    if "speech" in expected:
        return check_speech(expected["speech"], *SPEECH[expected["speech"]](data), 0.5)
    return ""


def named(case):
    def test():
        return replay(case, NAMES)

    test.__name__ = f"{case['client']} {case['call']}"
    return test


def ask(path):
    return json.loads(send({"method": "GET", "path": path, "headers": {}})[2])


NAMES = {"$MODEL": ask("/v1/models")["data"][0]["id"], "$VOICE": ask("/v1/audio/voices")["default"]}
run([named(case) for case in CASES])
