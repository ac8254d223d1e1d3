"""OpenAI's package and Pipecat's parser of events with a model that hears: the buffer of sound, cleared and committed.
And what vllm-omni's example asks for.

Needs two servers: one that hears, and one whose voice speaks what it hears.
"""

import asyncio
import base64
import json
import urllib.request

import openai
import websockets
from common import arguments, pcm16, run
from pipecat.services.openai.realtime import events

parser = arguments(__doc__)
parser.add_argument("--voice-url", required=True, help="where the server is that speaks to this one")
args = parser.parse_args()
PATIENCE = 120


def spoken(text):
    """Sound of the other server's voice, and a second of silence."""
    body = json.dumps({"input": text, "seed": 3, "response_format": "pcm"}).encode()
    request = urllib.request.Request(f"{args.voice_url}/v1/audio/speech", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return answer.read() + bytes(48_000)


def a_buffer_is_cleared_committed_and_answered():
    speech = spoken("Could you tell me the time?")

    async def talk():
        client = openai.AsyncOpenAI(base_url=f"{args.base_url}/v1", api_key="sk-anything")
        async with client.realtime.connect(model="gpt-realtime") as connection:

            async def until(kind):
                while True:
                    event = await connection.recv()
                    assert event.type != "error", event.error.message
                    # The other client knows it, too.
                    assert events.parse_server_event(event.model_dump_json(exclude_none=True)), event.type
                    if event.type == kind:
                        return event

            audio = {"input": {"turn_detection": None, "transcription": {"model": "whisper-1"}}}
            await connection.session.update(
                session={"type": "realtime", "max_output_tokens": 8, "audio": audio}
            )
            await connection.input_audio_buffer.append(audio=base64.b64encode(bytes(9_600)).decode())
            await connection.input_audio_buffer.clear()
            await until("input_audio_buffer.cleared")
            for at in range(0, len(speech), 9_600):
                await connection.input_audio_buffer.append(audio=base64.b64encode(speech[at : at + 9_600]).decode())
            await connection.input_audio_buffer.commit()
            committed = await until("input_audio_buffer.committed")
            added = await until("conversation.item.added")
            assert added.item.id == committed.item_id and added.item.content[0].type == "input_audio", added
            await connection.response.create()
            sound = b""
            while True:
                event = await connection.recv()
                if event.type == "response.output_audio.delta":
                    sound += base64.b64decode(event.delta)
                if event.type == "response.done":
                    break
            # What the buffer had before it was cleared is not part of the turn.
            await connection.conversation.item.retrieve(item_id=committed.item_id)
            while (event := await connection.recv()).type != "conversation.item.retrieved":
                pass
            kept = base64.b64decode(event.item.content[0].audio)
            assert len(kept) == len(speech), (len(kept), len(speech))
            return f"{len(pcm16(sound)) / 24000:.2f} s"

    return asyncio.run(asyncio.wait_for(talk(), PATIENCE))


def a_turn_that_the_server_finds_is_told_as_openai_tells_it():
    speech = spoken("Please close the window before you leave.")

    async def talk():
        client = openai.AsyncOpenAI(base_url=f"{args.base_url}/v1", api_key="sk-anything")
        async with client.realtime.connect(model="gpt-realtime") as connection:
            await connection.session.update(session={"type": "realtime", "max_output_tokens": 8})
            for at in range(0, len(speech), 9_600):
                await connection.input_audio_buffer.append(audio=base64.b64encode(speech[at : at + 9_600]).decode())
            kinds = []
            while "response.done" not in kinds:
                kinds.append((await connection.recv()).type)
        wanted = [f"input_audio_buffer.{what}" for what in ("speech_started", "speech_stopped", "committed")]
        wanted += ["conversation.item.added", "response.created", "response.output_audio.delta", "response.done"]
        at = [kinds.index(kind) for kind in wanted]
        assert at == sorted(at), kinds
        return f"{len(set(kinds))} kinds of events"

    return asyncio.run(asyncio.wait_for(talk(), PATIENCE))


def the_realtime_example_of_vllm_omni_is_told_what_it_lacks():
    """Its requests, replayed. It has names of its own: a session without one, commits that begin and end an answer."""

    async def talk():
        socket = args.base_url.replace("http", "ws", 1) + "/v1/realtime"
        async with websockets.connect(socket) as connection:

            async def answer():
                return json.loads(await asyncio.wait_for(connection.recv(), PATIENCE))

            assert (await answer())["type"] == "session.created"
            told = {}
            for name, event in [
                ("model", {"type": "session.update", "model": "Qwen/Qwen3-Omni-30B-A3B-Instruct"}),
                ("begin", {"type": "input_audio_buffer.commit", "final": False}),
            ]:
                await connection.send(json.dumps(event))
                told[name] = (await answer())["error"]
            assert "session" in told["model"]["message"], told
            assert told["begin"]["code"] == "input_audio_buffer_commit_empty", told
            # 16 kHz, which it does not say.
            await connection.send(json.dumps({"type": "input_audio_buffer.append", "audio": "AAAA" * 4_000}))
            await connection.send(json.dumps({"type": "input_audio_buffer.commit", "final": True}))
            kinds = [(await answer())["type"] for _ in range(3)]
            # A turn, which nobody has answered: it does not ask for that.
            assert kinds == ["input_audio_buffer.committed", "conversation.item.added", "conversation.item.done"], kinds

    return asyncio.run(asyncio.wait_for(talk(), PATIENCE))


run(
    [
        a_buffer_is_cleared_committed_and_answered,
        a_turn_that_the_server_finds_is_told_as_openai_tells_it,
        the_realtime_example_of_vllm_omni_is_told_what_it_lacks,
    ]
)
