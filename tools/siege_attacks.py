"""The attacks of `siege.py`: each one is a client, or many, of one address, and is over after some seconds.

An attack is a function of an `Attack`. It must leave no connection open, and no voice on the server. What it is answered
does not matter here (tests/attacks looks at that); what the ordinary clients beside it hear does.
"""

import base64
import http.client
import json
import math
import os
import resource
import signal
import socket
import struct
import threading
import time

SPEECH, BATCH, VOICES, CHAT = "/v1/audio/speech", "/v1/audio/speech/batch", "/v1/audio/voices", "/v1/chat/completions"
STREAM = "/v1/audio/speech/stream"
JSON = "Content-Type: application/json\r\n"
MIB = 1 << 20


class Attack:
    """What an attack has: the server, an address of its own, random numbers, and a time at which it is over."""

    def __init__(self, server, rng, source, seconds):
        self.server, self.rng, self.source = server, rng, source
        self.ends = time.monotonic() + seconds
        self.sockets, self.lock = [], threading.Lock()

    def goes_on(self):
        return time.monotonic() < self.ends

    def connect(self):
        """A connection that is closed with the attack; None where the server takes no more."""
        try:
            opened = socket.create_connection(self.server.address, 10, (self.source, 0))
        except OSError:
            return None
        opened.settimeout(5)
        with self.lock:
            self.sockets.append(opened)
        return opened

    def write(self, opened, data):
        """Whether the server took all of it."""
        try:
            opened.sendall(data)
            return True
        except (OSError, AttributeError):
            return False

    def read(self, opened, count):
        """At most so many bytes; nothing if there are none."""
        try:
            return opened.recv(count)
        except (OSError, AttributeError):
            return b""

    def begin(self, path, body=b"", method="POST", kind=JSON):
        """Sends a request and reads nothing of the answer."""
        opened = self.connect()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{kind}Content-Length: {len(body)}\r\n\r\n"
        self.write(opened, head.encode() + body)
        return opened

    def ask(self, path, body=b"", method="POST", kind=JSON):
        """Reads the answer too: its status, or None."""
        name, _, value = kind.strip().partition(": ")
        connection = http.client.HTTPConnection(*self.server.address, timeout=30, source_address=(self.source, 0))
        try:
            connection.request(method, path, body, {"Host": "localhost", **({name: value} if name else {})})
            reply = connection.getresponse()
            reply.read()
            return reply.status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def speak(self, text, **fields):
        return self.server.speech(text, **fields)

    def websocket(self):
        opened = self.connect()
        self.write(opened, (
            f"GET {STREAM} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n").encode())
        return opened

    def at_once(self, count, work):
        """Runs `work(number)` on so many threads, to their end."""
        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def wait(self, seconds):
        time.sleep(max(0, min(seconds, self.ends - time.monotonic())))

    def close(self):
        for opened in self.sockets:
            opened.close()


def frame(payload, first=0x81):
    """A WebSocket frame of a client, its mask zeros; `first` has FIN and the opcode."""
    size = len(payload)
    if size < 126:
        length = bytes([0x80 | size])
    elif size < 1 << 16:
        length = b"\xfe" + struct.pack(">H", size)
    else:
        length = b"\xff" + struct.pack(">Q", size)
    return bytes([first]) + length + bytes(4) + payload


def message(**fields):
    return frame(json.dumps(fields).encode())


def recording(number, seconds=1.0):
    """A hum as a WAV of 16 bits at 16 kHz."""
    tones = [(90 + 17 * (number % 50)) * n for n in (1, 2, 3)]
    samples = [int(sum(math.sin(math.tau * f * i / 16000) for f in tones) * 6000) for i in range(int(seconds * 16000))]
    data = struct.pack(f"<{len(samples)}h", *samples)
    return b"RIFF" + struct.pack("<I4s4sIHHIIHH4sI", 36 + len(data), b"WAVE", b"fmt ", 16, 1, 1, 16000, 32000, 2, 16,
                                 b"data", len(data)) + data


def form(parts):
    """A form and its content type."""
    body = b"".join(b"--cut\r\nContent-Disposition: form-data; name=\"" + name.encode() + b"\"" + more + b"\r\n\r\n"
                    + content + b"\r\n" for name, more, content in parts)
    return body + b"--cut--\r\n", "Content-Type: multipart/form-data; boundary=cut\r\n"


def upload(server, name):
    """Uploads a voice that stays, with much to list."""
    text = ("ü" * 4096).encode()
    body, kind = form([("name", b"", name.encode()), ("consent", b"", text), ("speaker_description", b"", text),
                       ("speaker_embedding", b"", json.dumps([0.5] * 64).encode())])
    connection = http.client.HTTPConnection(*server.address, timeout=30)
    connection.request("POST", VOICES, body, {"Host": "localhost", "Content-Type": kind.strip().partition(": ")[2]})
    reply = connection.getresponse()
    assert reply.status == 200, reply.read()
    connection.close()


LONG = "This is one sentence of a very long text. " * 1500


def guilty(a):
    """The same request, which brings its stage down each time."""
    for _ in range(3):
        a.ask(SPEECH, a.server.guilty)


def first_chunks(a):
    for frames in (32, 600, 5000):
        a.begin(SPEECH, a.speak("one", stream_format="audio", initial_codec_chunk_frames=frames, max_new_tokens=100))
    a.wait(5)


def deadlines(a):
    body = a.speak("one", stream_format="audio", response_format="pcm", max_new_tokens=1, deadline_ms=1)

    def hasty(_):
        while a.goes_on():
            a.ask(SPEECH, body)

    a.at_once(3, hasty)


def log_is_not_read(a):
    """The reader of standard error sleeps while requests fill the pipe."""
    a.server.log_is_read.clear()
    try:
        for _ in range(300):
            if not a.goes_on():
                break
            a.ask(SPEECH, b"{}")
        a.ask(SPEECH, a.server.guilty)
    finally:
        a.server.log_is_read.set()


def json_of_objects(a):
    body = b"[" + b'{"":0},' * (15 * MIB // 7) + b"{}]"
    a.at_once(3, lambda _: a.ask(SPEECH, body))


def answers_not_read(a):
    body = a.speak("Hello there.", max_new_tokens=75, ignore_eos=True, speed=0.25)
    for _ in range(30):
        a.begin(SPEECH, body)
    a.wait(15)


def lists_not_read(a):
    for _ in range(60):
        a.begin(VOICES, method="GET", kind="")
    a.wait(10)


def recordings_of_sessions(a):
    config = message(type="session.config", ref_audio=base64.b64encode(bytes(10_000_000)).decode())
    sockets = [a.websocket() for _ in range(20)]
    for opened in sockets:
        a.write(opened, config)
    a.wait(5)


def large_messages(a):
    large = message(type="nonsense", pad="x" * (15 * MIB))
    for _ in range(15):
        opened = a.websocket()
        a.write(opened, large)
    a.wait(5)


def named_files(a):
    items = [{"input": "Hello.", "ref_audio": f"file://{a.server.folder}/noise.wav"}] * 32
    body = json.dumps({"items": items, "max_new_tokens": 1}).encode()
    a.at_once(3, lambda _: a.ask(BATCH, body))


def unfinished_messages(a):
    for _ in range(5):
        a.write(a.websocket(), frame(b"x" * (15 * MIB), 0x01) + frame(b"", 0x00))
    empty, nothing = a.websocket(), frame(b"", 0x00) * 20_000
    a.write(empty, frame(b"x", 0x01))
    while a.goes_on() and a.write(empty, nothing):
        pass


def unfinished_bodies(a):
    for _ in range(8):
        opened = a.connect()
        a.write(opened, f"POST {SPEECH} HTTP/1.1\r\nHost: localhost\r\n{JSON}Content-Length: 16000000\r\n\r\n".encode()
                + b" " * 15_000_000)
    a.wait(12)


def empty_messages(a):
    empty = '{"role":"assistant","content":""},'
    for count in (340_000, 340_000, 1024):
        a.ask(CHAT, f'{{"messages":[{empty * count}{{"role":"user","content":"Hello."}}]}}'.encode())


def slow_readers(a):
    body = a.speak(LONG, stream_format="audio", response_format="pcm")
    readers = [a.begin(SPEECH, body) for _ in range(16)]
    while a.goes_on():
        for reader in readers:
            reader and reader.settimeout(0.05)
            a.read(reader, 4096)
        a.wait(2)


def slow_writers(a):
    writers, letter = [a.websocket() for _ in range(16)], message(type="input.text", text="a ")
    while a.goes_on():
        for writer in writers:
            a.write(writer, letter)
        a.wait(4)


def one_byte_more(a):
    for _ in range(16):
        opened = a.begin(SPEECH, a.speak(LONG))
        a.write(opened, b"x")
        opened and opened.close()


def pings(a):
    opened, many = a.websocket(), frame(bytes(125), 0x89) * 2000
    while a.goes_on() and a.write(opened, many):
        pass


def commits(a):
    large = message(type="input.commit", commit_id="x" * (4 * MIB))
    small = message(type="input.commit", commit_id="y" * 250)

    def writer(_):
        opened = a.websocket()
        for data in [large] * 4 + [small] * 8:
            a.write(opened, data)

    a.at_once(12, writer)


def transcripts(a):
    voice = "data:audio/wav;base64," + base64.b64encode(recording(0)).decode()
    for chars in (20_000, 4000, 4000):
        fields = {"ref_audio": voice, "ref_text": "word " * (chars // 5)} if a.server.clones else {}
        a.begin(SPEECH, a.speak("Yes. No. " * 2000, stream_format="audio", max_new_tokens=1, plain=True, **fields))
    a.wait(5)


def batches(a):
    items = [{"input": f"Number {number}."} for number in range(32)]
    body = json.dumps({"items": items, "max_new_tokens": 1, "speaker_embedding": [0.5] * 64, "numbers": [0] * 90_000,
                       "unknown": "x" * (13 * MIB)}).encode()
    a.at_once(2, lambda _: a.ask(BATCH, body))


def uploads(a):
    def loop(number):
        name = f"loop-{a.source}-{number}-{a.rng.random()}"
        body, kind = form([("name", b"", name.encode()), ("consent", b"", b"form 12"),
                           ("audio_sample", b"; filename=\"a.wav\"\r\nContent-Type: audio/wav", recording(number))])
        while a.goes_on():
            a.ask(VOICES, body, kind=kind)
            a.ask(f"{VOICES}/{name}", method="DELETE", kind="")
        for _ in range(50):
            if a.ask(f"{VOICES}/{name}", method="DELETE", kind="") in (200, 404):
                break

    a.at_once(4, loop)


def no_descriptors(a):
    """For half a second no file can be opened, and the talker's process dies."""
    before = resource.prlimit(a.server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(a.server.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        for child in a.server.children():
            os.kill(child, signal.SIGKILL)
        time.sleep(0.5)
    finally:
        resource.prlimit(a.server.pid, resource.RLIMIT_NOFILE, before)


def signals(a):
    for number in (signal.SIGHUP, signal.SIGUSR1):
        os.kill(a.server.pid, number)


def silent_sockets(a):
    for number in range(260):
        a.websocket() if number % 2 else a.connect()
    a.wait(4)


def other_hosts(a):
    for path in (SPEECH, VOICES, "/metrics"):
        a.write(a.connect(), f"GET {path} HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\n\r\n".encode())


def chapters(a):
    body = a.speak("A sentence of a book. " * 1310, ignore_eos=True, max_new_tokens=6000)
    a.at_once(15, lambda _: a.ask(SPEECH, body))
    for _ in range(64):
        a.begin(SPEECH, a.speak(LONG, stream_format="audio", response_format="pcm"))
    a.wait(5)


def leavers(a):
    body = a.speak("It begins, and its listener leaves at once.", stream_format="audio")
    while a.goes_on():
        opened = a.begin(SPEECH, body)
        if a.rng.random() < 0.5:
            a.read(opened, 256)
        opened and opened.close()


def garbage(a):
    for _ in range(300):
        opened = a.connect()
        a.write(opened, a.rng.choice([b"", b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\n\r\n"])
                + a.rng.randbytes(a.rng.randrange(1, 2000)))
        opened and opened.close()


def fast_text(a):
    """Live text at the pace that the connection takes."""
    opened, text = a.websocket(), message(type="input.text", text="word " * 2000)
    opened and opened.settimeout(1)
    while a.goes_on() and a.write(opened, text):
        pass


def flood(a):
    def client(number):
        while a.goes_on():
            a.ask(SPEECH, a.speak(f"Number {number}.", max_new_tokens=12))

    a.at_once(24, client)


#: Each with the seconds that it may last. Those of the second list need a model that clones voices.
ALL = [(guilty, 10), (first_chunks, 10), (deadlines, 10), (log_is_not_read, 10), (json_of_objects, 10),
       (answers_not_read, 20), (large_messages, 15), (unfinished_messages, 15), (unfinished_bodies, 15),
       (empty_messages, 10), (slow_readers, 20), (slow_writers, 20), (one_byte_more, 10), (pings, 8), (commits, 15),
       (transcripts, 10), (batches, 15), (no_descriptors, 5), (signals, 1), (silent_sockets, 8), (other_hosts, 2),
       (chapters, 10), (leavers, 8), (garbage, 10), (fast_text, 8), (flood, 10)]
CLONES = [(lists_not_read, 12), (recordings_of_sessions, 15), (named_files, 15), (uploads, 10)]
