"""The OpenAI package, unchanged, against a server whose model hears and sees: a picture and a recording."""

import base64

import openai
from common import arguments, pcm16, run
from omni_media import SECONDS, SIDES, photograph, recording

args = arguments(__doc__).parse_args()
client = openai.OpenAI(base_url=f"{args.base_url}/v1", api_key="none", max_retries=0, timeout=120)
model = client.models.list().data[0]
rate = client.get("/audio/voices", cast_to=object)["sample_rate"]
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(photograph()).decode()}}
RECORDING = {"type": "input_audio", "input_audio": {"data": base64.b64encode(recording()).decode(), "format": "wav"}}
QUESTION = {"type": "text", "text": "What do you see, and what do you hear?"}
# Blocks of 32 pixels, and 13 a second.
IMAGE_TOKENS = (SIDES[0] // 32) * round(SIDES[1] / 32)
AUDIO_TOKENS = 13 * SECONDS


def asked(parts, **more):
    messages = [{"role": "user", "content": parts}]
    return client.chat.completions.create(model=model.id, messages=messages, max_completion_tokens=12, seed=5, **more)


def counted(usage):
    details = usage.prompt_tokens_details.model_dump()
    return details["image_tokens"], details["audio_tokens"]


def the_model_says_what_it_takes():
    takes = model.model_dump()["input_modalities"]
    assert {"text", "image", "audio"} <= set(takes), takes
    return ", ".join(takes)


def a_picture_is_answered_in_text():
    answer = asked([PICTURE, QUESTION])
    assert counted(answer.usage) == (IMAGE_TOKENS, 0), answer.usage
    return f"{answer.choices[0].message.content!r}, {IMAGE_TOKENS} tokens of the picture"


def a_recording_is_answered_in_text():
    answer = asked([RECORDING, QUESTION])
    assert counted(answer.usage) == (0, AUDIO_TOKENS), answer.usage
    return f"{answer.choices[0].message.content!r}, {AUDIO_TOKENS} tokens of the recording"


def both_are_answered_with_speech_and_a_seed_repeats_it():
    def spoken():
        audio = {"voice": "ethan", "format": "pcm16"}
        more = {"modalities": ["text", "audio"], "audio": audio, "extra_body": {"audio": audio | {"max_new_tokens": 20}}}
        answer = asked([PICTURE, RECORDING, QUESTION], **more)
        assert counted(answer.usage) == (IMAGE_TOKENS, AUDIO_TOKENS), answer.usage
        return base64.b64decode(answer.choices[0].message.audio.data)

    first = spoken()
    assert first == spoken(), "the same seed gave other samples"
    return f"{len(pcm16(first)) / rate:.2f} s of speech"


def other_media_make_another_answer_and_none_too():
    heard = [asked(parts).choices[0].message.content for parts in ([QUESTION], [PICTURE, QUESTION], [RECORDING, QUESTION])]
    assert len(set(heard)) == 3, heard


def an_answer_is_streamed():
    text = ""
    for chunk in asked([PICTURE, RECORDING, QUESTION], stream=True):
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
    assert text == asked([PICTURE, RECORDING, QUESTION]).choices[0].message.content
    return f"{text!r}"


def what_is_no_picture_is_an_openai_error():
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}
    try:
        asked([QUESTION, broken])
    except openai.BadRequestError as error:
        assert error.body["param"] == "messages[0].content[1]", error.body
        return error.body["message"]
    raise AssertionError("it was accepted")


run(
    [
        the_model_says_what_it_takes,
        a_picture_is_answered_in_text,
        a_recording_is_answered_in_text,
        both_are_answered_with_speech_and_a_seed_repeats_it,
        other_media_make_another_answer_and_none_too,
        an_answer_is_streamed,
        what_is_no_picture_is_an_openai_error,
    ]
)
