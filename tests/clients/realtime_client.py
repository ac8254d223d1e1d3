"""Clients of OpenAI's realtime protocol: OpenAI's package, Pipecat's parser of events, LiveKit's model.

Needs a server with a model that answers; sound is sent only where it hears.
"""

import asyncio
import base64
import contextlib
import json
import os
import ssl
import subprocess
import tempfile
import urllib.parse

import openai
import websockets
from common import arguments, javascript, pcm16, run

parser = arguments(__doc__)
parser.add_argument("--node-modules", default=os.environ.get("NODE_MODULES"), help="the folder with openai and ws")
args = parser.parse_args()
BASE = f"{args.base_url}/v1"
SOCKET = BASE.replace("http", "ws", 1) + "/realtime?model=gpt-realtime"
SHORT = {"type": "realtime", "max_output_tokens": 8, "audio": {"input": {"turn_detection": None}}}
PATIENCE = 120


def question(text):
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def openai_python_talks():
    async def talk():
        client = openai.AsyncOpenAI(base_url=BASE, api_key="sk-anything")
        answers = []
        async with client.realtime.connect(model="gpt-realtime") as connection:
            await connection.session.update(session=SHORT)
            for modality in ("text", "audio"):
                await connection.conversation.item.create(item=question("Say hello"))
                await connection.response.create(response={"output_modalities": [modality]})
                text, sound = "", b""
                async for event in connection:
                    if event.type == "error":
                        raise AssertionError(event.error.message)
                    if event.type in ("response.output_text.delta", "response.output_audio_transcript.delta"):
                        text += event.delta
                    if event.type == "response.output_audio.delta":
                        sound += base64.b64decode(event.delta)
                    if event.type == "response.done":
                        response = event.response
                        break
                assert response.status in ("completed", "incomplete"), response
                assert response.usage.output_token_details.text_tokens > 0, response
                content = response.output[0].content[0]
                assert (content.text or content.transcript) == text, content
                answers.append((text, sound))
            await connection.conversation.item.truncate(
                item_id=response.output[0].id, content_index=0, audio_end_ms=20
            )
            while (await connection.recv()).type != "conversation.item.truncated":
                pass
        return answers

    (_, silent), (text, sound) = asyncio.run(asyncio.wait_for(talk(), PATIENCE))
    assert not silent and sound and text
    return f"{len(pcm16(sound)) / 24000:.2f} s"


def a_secret_of_openai_python_opens_its_session():
    async def talk():
        server = openai.AsyncOpenAI(base_url=BASE, api_key="sk-anything")
        session = {"type": "realtime", "instructions": "Be brief.", "output_modalities": ["text"]}
        made = await server.realtime.client_secrets.create(
            expires_after={"anchor": "created_at", "seconds": 60}, session=session
        )
        assert made.value.startswith("ek_") and made.session.instructions == "Be brief.", made
        page = openai.AsyncOpenAI(base_url=BASE, api_key=made.value)
        async with page.realtime.connect(model="gpt-realtime") as connection:
            created = await connection.recv()
            assert created.type == "session.created" and created.session.instructions == "Be brief.", created
            await connection.session.update(session=SHORT)
            await connection.conversation.item.create(item=question("Say hello"))
            await connection.response.create()
            async for event in connection:
                if event.type == "response.done":
                    return event.response.output[0].content[0].text

    return asyncio.run(asyncio.wait_for(talk(), PATIENCE))


def openai_javascript_talks():
    """It speaks TLS only, so there is some in front of the server."""
    target = urllib.parse.urlsplit(BASE)

    async def pass_on(source, sink):
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.close()

    async def client(reader, writer):
        from_server, to_server = await asyncio.open_connection(target.hostname, target.port)
        await asyncio.gather(pass_on(reader, to_server), pass_on(from_server, writer))

    async def talk(folder):
        key, certificate = f"{folder}/key.pem", f"{folder}/certificate.pem"
        made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
        subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        async with await asyncio.start_server(client, "127.0.0.1", 0, ssl=context) as server:
            base = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            trusting = {"NODE_TLS_REJECT_UNAUTHORIZED": "0"}
            return await asyncio.to_thread(javascript, "openai_realtime.mjs", args.node_modules, base, trusting)

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(talk(folder))


def pipecat_parses_every_event():
    from pipecat.services.openai.realtime import events

    async def talk():
        seen = {}
        async with websockets.connect(SOCKET, additional_headers={"Authorization": "Bearer sk-anything"}) as socket:

            async def send(event):
                # As Pipecat writes it.
                if not isinstance(event, dict):
                    event = event.model_dump(exclude_none=True)
                await socket.send(json.dumps(event))

            async def until(kind):
                while True:
                    text = await socket.recv()
                    event = events.parse_server_event(text)
                    assert event is not None, f"Pipecat does not know {text[:200]}"
                    seen[event.type] = event
                    if event.type == kind:
                        return event

            created = await until("session.created")
            assert created.session.object == "realtime.session"
            await send({"type": "session.update", "session": SHORT})
            await until("session.updated")
            item = events.ConversationItem(
                type="message", role="user", content=[events.ItemContent(type="input_text", text="Hi")]
            )
            await send(events.ConversationItemCreateEvent(item=item))
            added = await until("conversation.item.done")
            assert added.item.id == item.id
            await send(events.ResponseCreateEvent(response=events.ResponseProperties()))
            done = await until("response.done")
            assert done.response.usage.input_token_details.text_tokens > 0
            assert seen["response.output_item.added"].item.role == "assistant"
            await send(events.ResponseCreateEvent(response=events.ResponseProperties(instructions="Greet the user")))
            await until("response.output_audio.delta")
            await send(events.ResponseCancelEvent())
            cancelled = await until("response.done")
            assert cancelled.response.status in ("cancelled", "incomplete"), cancelled
            last = cancelled.response.output[0].id
            await send(events.ConversationItemTruncateEvent(item_id=last, content_index=0, audio_end_ms=10))
            await until("conversation.item.truncated")
            await send(events.ConversationItemRetrieveEvent(item_id=last))
            await until("conversation.item.retrieved")
            await send(events.ConversationItemDeleteEvent(item_id=last))
            await until("conversation.item.deleted")
            await send({"type": "nonsense"})
            assert (await until("error")).error.type == "invalid_request_error"
        return len(seen)

    return f"{asyncio.run(asyncio.wait_for(talk(), PATIENCE))} kinds"


def livekit_talks():
    from livekit.agents import utils
    from livekit.agents.llm import ChatContext
    from livekit.plugins import openai as plugin

    async def talk():
        async with utils.http_context.open():
            model = plugin.realtime.RealtimeModel(
                base_url=BASE, api_key="sk-anything", max_response_output_tokens=8, turn_detection=None
            )
            session = model.session()
            errors = []
            session.on("error", errors.append)
            chat = ChatContext.empty()
            chat.add_message(role="user", content="What is the capital of France?")
            await session.update_chat_ctx(chat)
            generation = await session.generate_reply(instructions="Be brief")
            text, samples, times = "", 0, []
            async for message in generation.message_stream:

                async def read():
                    nonlocal text
                    async for delta in message.text_stream:
                        text += delta
                        times.append(getattr(delta, "start_time", None))

                async def hear():
                    nonlocal samples
                    async for frame in message.audio_stream:
                        samples += frame.samples_per_channel

                await asyncio.gather(read(), hear())
            assert not errors, errors
            await session.aclose()
            await model.aclose()
            return text, samples, times

    text, samples, times = asyncio.run(asyncio.wait_for(talk(), PATIENCE))
    assert text and samples > 2400, (text, samples)
    return f"{samples / 24000:.2f} s, {len(times)} texts"


run(
    [
        openai_python_talks,
        a_secret_of_openai_python_opens_its_session,
        openai_javascript_talks,
        pipecat_parses_every_event,
        livekit_talks,
    ]
)
