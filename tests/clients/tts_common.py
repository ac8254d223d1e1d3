"""What the clients of Qwen3-TTS share. The small checkpoints speak noise that does not end: every request has a limit."""

import base64
import io
import json
import math
import subprocess
import tempfile
import urllib.error
import urllib.request
import wave

from common import arguments as common_arguments

FRAME = 1920
RATE = 24000


def arguments(description):
    parser = common_arguments(description)
    parser.add_argument("--clone-url", required=True, help="a server with a Base checkpoint; --base-url is CustomVoice")
    return parser


def hum(number, seconds=1.0, rate=16000):
    """A recording of somebody as a wav file; another voice for every number."""
    pitch = 90 + 17 * number
    tone = lambda t: sum(math.sin(2 * math.pi * pitch * n * t) / n for n in (1, 2, 3))
    samples = [round(6000 * tone(i / rate)) for i in range(round(seconds * rate))]
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(b"".join(sample.to_bytes(2, "little", signed=True) for sample in samples))
    return file.getvalue()


def data_url(wav):
    return "data:audio/wav;base64," + base64.b64encode(wav).decode()


def post(url, body):
    """Status and answer, as bytes."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def upload(url, name, wav, **fields):
    """By curl, as people do it. Status and JSON."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        file.write(wav)
        file.flush()
        command = ["curl", "-sS", "-w", "\n%{http_code}", f"{url}/v1/audio/voices"]
        command += ["-F", f"audio_sample=@{file.name}", "-F", f"name={name}"]
        for field, value in fields.items():
            command += ["-F", f"{field}={value}"]
        body, status = subprocess.run(command, check=True, capture_output=True, timeout=120).stdout.rsplit(b"\n", 1)
    return int(status), json.loads(body)


def check_frames(what, pcm, frames):
    """So many frames of samples that are not silent."""
    assert len(pcm) == 2 * FRAME * frames, f"{what}: {len(pcm)} bytes are not {frames} frames"
    assert any(pcm), f"{what}: silent"
