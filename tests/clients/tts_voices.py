"""Voices uploaded with curl, and batches: the request shapes of vllm-omni's example clients."""

import base64
import json
import urllib.request

from common import run
from tts_common import arguments, check_frames, data_url, hum, post, upload

args = arguments(__doc__).parse_args()
URL = args.clone_url
SPEECH, BATCH, VOICES = (f"{URL}/v1/audio/{route}" for route in ("speech", "speech/batch", "voices"))
TEXT = {"input": "This is my own voice.", "max_new_tokens": 5, "seed": 9, "response_format": "pcm"}


def voices():
    with urllib.request.urlopen(VOICES, timeout=30) as answer:
        return json.load(answer)


def delete(name):
    request = urllib.request.Request(f"{VOICES}/{name}", method="DELETE")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def speak(**more):
    status, body = post(SPEECH, {**TEXT, **more})
    assert status == 200, body
    check_frames(str(list(more)), body, 5)
    return body


def an_uploaded_voice_speaks_as_its_recording_does():
    status, answer = upload(URL, "narrator_1", hum(3), consent="form 7", speaker_description="warm")
    assert status == 200 and answer["success"], answer
    assert answer["voice"]["name"] == "narrator_1" and answer["voice"]["file_size"] == len(hum(3)), answer
    listed = voices()
    assert "narrator_1" in listed["names"], listed
    (about,) = [voice for voice in listed["uploaded_voices"] if voice["name"] == "narrator_1"]
    assert about["consent"] == "form 7" and about["speaker_description"] == "warm" and "ref_text" not in about, about
    assert speak(voice="narrator_1") == speak(voice="NARRATOR_1", task_type="Base") == speak(ref_audio=data_url(hum(3)))


def with_a_transcript_it_is_cloned_in_context():
    assert upload(URL, "narrator_2", hum(4), consent="yes", ref_text="La la la.")[0] == 200
    in_context = speak(ref_audio=data_url(hum(4)), ref_text="La la la.")
    assert speak(voice="narrator_2") == in_context
    assert speak(voice="narrator_2", x_vector_only_mode=True) == speak(ref_audio=data_url(hum(4))) != in_context


def a_label_never_changes_whose_voice_it_is():
    mine = speak(ref_audio=data_url(hum(5)))
    assert speak(ref_audio=data_url(hum(5)), voice="narrator_1") == mine != speak(voice="narrator_1")


def consent_is_required_and_names_are_taken_once():
    status, answer = upload(URL, "narrator_3", hum(5))
    assert status == 400 and "consent" in answer["error"]["message"], answer
    status, answer = upload(URL, "Narrator_1", hum(5), consent="yes")
    assert status == 409 and "already" in answer["error"]["message"], answer


def a_batch_speaks_each_text_as_alone():
    status, body = post(
        BATCH,
        {
            "items": [
                {"input": TEXT["input"]},
                {"input": TEXT["input"], "voice": "narrator_2"},
                {"input": ""},
                {"input": TEXT["input"], "response_format": "flac"},
            ],
            **{name: value for name, value in TEXT.items() if name != "input"},
            "voice": "narrator_1",
        },
    )
    answer = json.loads(body)
    assert status == 200 and (answer["total"], answer["succeeded"], answer["failed"]) == (4, 3, 1), answer
    first, second, failed, flac = answer["results"]
    assert [result["index"] for result in answer["results"]] == [0, 1, 2, 3]
    assert base64.b64decode(first["audio_data"]) == speak(voice="narrator_1")
    assert base64.b64decode(second["audio_data"]) == speak(voice="narrator_2")
    assert failed["status"] == "error" and "empty" in failed["error"], failed
    assert flac["media_type"] == "audio/flac" and base64.b64decode(flac["audio_data"])[:4] == b"fLaC"
    assert first["usage"]["output_tokens"] == 5, first["usage"]


def one_recording_for_a_whole_batch():
    items = [{"input": text} for text in ("First sentence.", "Second sentence.", "Third sentence.")]
    more = {"task_type": "Base", "ref_audio": data_url(hum(6)), "ref_text": "La la.", "max_new_tokens": 3}
    status, body = post(BATCH, {"items": items, "voice": "vivian", **more})
    answer = json.loads(body)
    assert status == 200 and answer["succeeded"] == 3, answer
    assert all(base64.b64decode(result["audio_data"])[:4] == b"RIFF" for result in answer["results"])


def deleted_voices_are_gone():
    for name in ("narrator_1", "narrator_2"):
        assert delete(name)["success"]
    assert not any(name.startswith("narrator") for name in voices()["names"])
    status, body = post(SPEECH, {**TEXT, "voice": "narrator_1"})
    assert status == 400, body


run(
    [
        an_uploaded_voice_speaks_as_its_recording_does,
        with_a_transcript_it_is_cloned_in_context,
        a_label_never_changes_whose_voice_it_is,
        consent_is_required_and_names_are_taken_once,
        a_batch_speaks_each_text_as_alone,
        one_recording_for_a_whole_batch,
        deleted_voices_are_gone,
    ]
)
