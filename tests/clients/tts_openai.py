"""The OpenAI package against Qwen3-TTS: voices by name, styles, languages, clones; whole, streamed, as events."""

import base64
import io
import json

import openai
import soundfile
from common import run
from tts_common import FRAME, RATE, arguments, check_frames, data_url, hum

args = arguments(__doc__).parse_args()


def connect(url):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)
    return client, client.models.list().data[0].id


custom, custom_model = connect(args.base_url)
base, base_model = connect(args.clone_url)
TEXT = "I am so happy to see you again."
LIMIT = {"max_new_tokens": 6, "seed": 3}


def speak(client, model, voice="vivian", form="pcm", more=None, **fields):
    body = {**LIMIT, **(more or {})}
    answer = client.audio.speech.create(
        model=model, voice=voice, input=TEXT, response_format=form, extra_body=body, **fields
    )
    return answer.content


def a_named_voice_speaks_in_every_format():
    reference = speak(custom, custom_model)
    check_frames("pcm", reference, 6)
    for form in ("wav", "flac", "mp3", "opus"):
        samples, rate = soundfile.read(io.BytesIO(speak(custom, custom_model, form=form)), dtype="int16")
        assert rate == RATE and 0 <= len(samples) - 6 * FRAME <= (1152 if form == "mp3" else 0), (form, len(samples))
        if form in ("wav", "flac"):
            assert samples.astype("<i2").tobytes() == reference, form


def every_voice_and_style_differs():
    said = {
        "vivian": speak(custom, custom_model, "vivian"),
        "ryan": speak(custom, custom_model, "Ryan"),
        "in English": speak(custom, custom_model, "vivian", more={"language": "English"}),
        "happily": speak(custom, custom_model, "vivian", instructions="Speak with excitement."),
        "with all of the text": speak(custom, custom_model, "vivian", more={"non_streaming_mode": False}),
    }
    assert len(set(said.values())) == len(said), "some sound the same"
    again = speak(custom, custom_model, "VIVIAN", more={"language": "Auto", "task_type": "CustomVoice"})
    assert again == said["vivian"], "what is said by default changes nothing when it is said"


def speech_is_streamed():
    with custom.audio.speech.with_streaming_response.create(
        model=custom_model,
        voice="ryan",
        input=TEXT,
        response_format="pcm",
        extra_body={**LIMIT, "max_new_tokens": 20, "initial_codec_chunk_frames": 1},
    ) as answer:
        pieces = list(answer.iter_bytes())
    assert len(pieces) > 2, f"{len(pieces)} piece(s)"
    check_frames("streamed", b"".join(pieces), 20)


def speech_comes_as_events():
    with custom.audio.speech.with_streaming_response.create(
        model=custom_model, voice="ryan", input=TEXT, response_format="pcm", stream_format="sse", extra_body=LIMIT
    ) as answer:


        events = [json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line.startswith("data: ")]
    assert [event["type"] for event in events[-1:]] == ["speech.audio.done"], events[-1]
    assert events[-1]["usage"]["output_tokens"] == 6, events[-1]
    pcm = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    assert pcm == speak(custom, custom_model, "ryan"), "events carry other samples"


def a_voice_is_cloned_from_a_recording():
    one = {"task_type": "Base", "ref_audio": data_url(hum(1)), "max_new_tokens": 12}
    said = {
        "its sound": speak(base, base_model, more=one),
        "its manner": speak(base, base_model, more={**one, "ref_text": "La la la."}),
        "another": speak(base, base_model, more={**one, "ref_audio": data_url(hum(8))}),
    }
    for name, pcm in said.items():
        check_frames(name, pcm, 12)
    assert len(set(said.values())) == len(said), "some sound the same"
    only = {**one, "ref_text": "La la la.", "x_vector_only_mode": True}
    assert speak(base, base_model, more=only) == said["its sound"], "the transcript was used"


def an_embedding_is_a_voice():
    check_frames("embedding", speak(base, base_model, more={"speaker_embedding": [0.1] * 64}), 6)


def what_a_checkpoint_cannot_do_is_refused():
    for client, model, voice, more, says in [
        (base, base_model, "vivian", {}, "no voice"),
        (base, base_model, "vivian", {"task_type": "CustomVoice"}, None),
        (custom, custom_model, "vivian", {"ref_audio": data_url(hum(1))}, "cannot clone"),
        (custom, custom_model, "nobody", {}, "choose one of"),
    ]:
        try:
            speak(client, model, voice, more=more)
        except openai.BadRequestError as error:
            assert says is None or says in error.message, error.message
        else:
            raise AssertionError(f"{voice} {list(more)} was taken")


run(
    [
        a_named_voice_speaks_in_every_format,
        every_voice_and_style_differs,
        speech_is_streamed,
        speech_comes_as_events,
        a_voice_is_cloned_from_a_recording,
        an_embedding_is_a_voice,
        what_a_checkpoint_cannot_do_is_refused,
    ]
)
