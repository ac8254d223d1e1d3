"""The OpenAI package, unchanged, against a running server: speech and spoken chat, whole and streamed."""

import base64
import io
import time
import wave

import openai
import soundfile
from common import arguments, check_speech, pcm16, run

args = arguments(__doc__).parse_args()
client = openai.OpenAI(base_url=f"{args.base_url}/v1", api_key="none", max_retries=0, timeout=120)
model = client.models.list().data[0].id
voices = client.get("/audio/voices", cast_to=object)
voice, rate = voices["default"], voices["sample_rate"]
TEXT = "The quick brown fox jumps over the lazy dog, and then it goes home to sleep."
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def read_wav(data):
    """A whole wav: its sizes must be right."""
    assert int.from_bytes(data[4:8], "little") == len(data) - 8, "RIFF size"
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (rate, 1, 2)
        frames = file.readframes(file.getnframes())
        assert len(frames) == 2 * file.getnframes(), "data size"
        return pcm16(frames)


def model_is_found_by_name():
    assert client.models.retrieve(model).id == model
    try:
        client.models.retrieve("no-such-model")
    except openai.NotFoundError as error:
        assert error.body["code"] == "model_not_found", error.body
    else:
        raise AssertionError("an unknown model was found")


def speech_whole():
    answer = client.audio.speech.create(model=model, voice=voice, input=TEXT)
    assert answer.response.headers["content-type"] == "audio/wav"
    return check_speech("wav", read_wav(answer.content), rate, 2)


def speech_streamed():
    begun, first, pieces = time.monotonic(), None, []
    with client.audio.speech.with_streaming_response.create(
        model=model, voice=voice, input=TEXT, response_format="pcm", extra_body={"seed": 1}
    ) as answer:
        for piece in answer.iter_bytes():
            first = first or time.monotonic() - begun
            pieces.append(piece)
    total = time.monotonic() - begun
    assert len(pieces) > 2, f"{len(pieces)} piece(s)"
    assert first < 0.7 * total, f"first bytes after {first:.2f} of {total:.2f} s"
    note = check_speech("pcm", pcm16(b"".join(pieces)), rate, 2)
    return f"{note}, first bytes after {first * 1000:.0f} of {total * 1000:.0f} ms"


def speech_streamed_to_a_wav_file():
    pieces = []
    with client.audio.speech.with_streaming_response.create(
        model=model, voice=voice, input=TEXT, response_format="wav", stream_format="audio"
    ) as answer:
        pieces.extend(answer.iter_bytes())
    data = b"".join(pieces)
    assert data[:4] == b"RIFF" and data[40:44] == b"\xff" * 4
    return check_speech("wav", pcm16(data[44:]), rate, 2)


def speech_in_every_format():
    """Decoded by libsndfile, which has other decoders than our tests in Rust."""

    def speak(form, **more):
        answer = client.audio.speech.create(
            model=model, voice=voice, input=TEXT, response_format=form, extra_body={"seed": 1}, **more
        )
        return answer.response.headers["content-type"], answer.content

    reference = pcm16(speak("pcm")[1])
    notes = []
    for form, media in [("wav", "audio/wav"), ("flac", "audio/flac"), ("mp3", "audio/mpeg"), ("opus", "audio/ogg")]:
        content_type, data = speak(form)
        assert content_type == media, content_type
        samples, found = soundfile.read(io.BytesIO(data), dtype="int16")
        # libsndfile decodes Opus at 48 kHz unless the header's rate is one of its own.
        assert found == rate and samples.ndim == 1, (form, found, samples.shape)
        # A streamed mp3 does not say where it ends, so this decoder keeps the silence of the codec around it.
        assert 0 <= len(samples) - len(reference) <= (2000 if form == "mp3" else 0), (form, len(samples), len(reference))
        if form in ("wav", "flac"):
            assert samples.tolist() == reference.tolist(), form
        note = check_speech(form, pcm16(samples.tobytes()), rate, 2)
        notes.append(f"{form} {len(data)} bytes, {note}")
    for speed in (0.5, 2.0):
        data = speak("flac", speed=speed)[1]
        assert soundfile.info(io.BytesIO(data)).frames == int(len(reference) / speed + 0.5), speed
    return "; ".join(notes)


def the_same_seed_gives_the_same_samples():
    def speak(seed):
        return client.audio.speech.create(
            model=model, voice=voice, input="Once again.", response_format="pcm", extra_body={"seed": seed}
        ).content

    first = speak(7)
    assert first == speak(7), "seed 7 did not reproduce"


def chat_in_text():
    answer = client.chat.completions.create(model=model, messages=QUESTION, max_completion_tokens=40)
    text = answer.choices[0].message.content
    assert text.strip() and answer.choices[0].message.audio is None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    return repr(text)


def chat_with_audio_whole():
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, modalities=["text", "audio"], audio={"voice": voice, "format": "wav"}
    )
    message = answer.choices[0].message
    assert message.audio.transcript.strip() and message.audio.id
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.completion_tokens_details.audio_tokens > 0
    note = check_speech("wav", read_wav(base64.b64decode(message.audio.data)), rate)
    return f"{message.audio.transcript!r}, {note}"


def chat_with_audio_streamed():
    stream = client.chat.completions.create(
        model=model,
        messages=QUESTION,
        modalities=["text", "audio"],
        audio={"voice": voice, "format": "pcm16"},
        stream=True,
        stream_options={"include_usage": True},
    )
    begun, first, role, text, transcript, audio, reason, usage = time.monotonic(), None, None, "", "", b"", None, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            role = role or choice.delta.role
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
            extra = choice.delta.model_dump().get("audio") or {}
            transcript += extra.get("transcript") or ""
            if extra.get("data"):
                first = first or time.monotonic() - begun
                audio += base64.b64decode(extra["data"])
    total = time.monotonic() - begun
    assert role == "assistant" and text.strip() and text == transcript
    assert reason in ("stop", "length") and usage.completion_tokens > 0
    assert first < total, "all audio came at the end"
    note = check_speech("pcm16", pcm16(audio), rate)
    return f"{text!r}, {note}, first audio after {first * 1000:.0f} of {total * 1000:.0f} ms"


def mistakes_are_openai_errors():
    for wrong in ({"voice": "nobody"}, {"response_format": "aac"}, {"input": ""}, {"speed": 5.0}):
        fields = {"model": model, "voice": voice, "input": "Hello."} | wrong
        try:
            client.audio.speech.create(**fields)
        except openai.BadRequestError as error:
            assert error.body["param"] == next(iter(wrong)), error.body
        else:
            raise AssertionError(f"{wrong} was accepted")


run(
    [
        model_is_found_by_name,
        speech_whole,
        speech_streamed,
        speech_streamed_to_a_wav_file,
        speech_in_every_format,
        the_same_seed_gives_the_same_samples,
        chat_in_text,
        chat_with_audio_whole,
        chat_with_audio_streamed,
        mistakes_are_openai_errors,
    ]
)
