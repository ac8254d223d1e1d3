"""The Wyoming protocol with the package that Home Assistant uses. The server is the one of OMNI_WYOMING."""

import asyncio
import os

from common import arguments, check_speech, pcm16, run
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.info import Describe, Info
from wyoming.ping import Ping, Pong
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped, SynthesizeVoice
from zeroconf import Zeroconf

arguments(__doc__).parse_args()
HOST, PORT = os.environ.get("OMNI_WYOMING", "127.0.0.1:10200").rsplit(":", 1)
TEXT = "The weather is lovely today. Shall we go for a walk?"


async def next_event(client):
    return await asyncio.wait_for(client.read_event(), timeout=60)


async def speech(client):
    """The samples and the rate of one answer."""
    event = await next_event(client)
    assert event is not None and AudioStart.is_type(event.type), event
    start, audio = AudioStart.from_event(event), b""
    assert (start.width, start.channels) == (2, 1), start
    while not AudioStop.is_type((event := await next_event(client)).type):
        assert AudioChunk.is_type(event.type), event
        audio += AudioChunk.from_event(event).audio
    return pcm16(audio), start.rate


async def info():
    async with AsyncTcpClient(HOST, int(PORT)) as client:
        await client.write_event(Describe().event())
        event = await next_event(client)
        assert Info.is_type(event.type), event
        return Info.from_event(event)


def it_is_found_on_the_network():
    name = os.environ.get("OMNI_WYOMING_NAME")
    if name is None:
        return "SKIP: not announced"
    with Zeroconf(interfaces=[HOST]) as network:
        found = network.get_service_info("_wyoming._tcp.local.", f"{name}._wyoming._tcp.local.", timeout=30_000)
    assert found is not None, "nobody answered"
    assert (found.port, found.parsed_addresses()) == (int(PORT), [HOST]), found
    return found.server


def it_tells_its_voices():
    [program] = asyncio.run(info()).tts
    assert program.supports_synthesize_streaming and program.installed
    assert program.voices and all(voice.languages for voice in program.voices), program
    return ", ".join(voice.name for voice in program.voices)


def a_whole_text_is_spoken_in_each_voice():
    async def spoken(voice):
        async with AsyncTcpClient(HOST, int(PORT)) as client:
            await client.write_event(Synthesize(TEXT, SynthesizeVoice(name=voice)).event())
            return check_speech(voice, *await speech(client))

    [program] = asyncio.run(info()).tts
    return "; ".join(asyncio.run(spoken(voice.name)) for voice in program.voices)


def speech_begins_before_the_text_has_ended():
    async def spoken():
        async with AsyncTcpClient(HOST, int(PORT)) as client:
            await client.write_event(SynthesizeStart().event())
            first, rest = TEXT.split(". ")
            for word in (first + ". ").split(" "):
                await client.write_event(SynthesizeChunk(word + " ").event())
            event = await next_event(client)
            assert AudioStart.is_type(event.type), event
            rate, audio = AudioStart.from_event(event).rate, b""
            audio += AudioChunk.from_event(await next_event(client)).audio
            await client.write_event(SynthesizeChunk(rest).event())
            # Home Assistant sends the whole text, too, for servers that know no streams.
            await client.write_event(Synthesize(TEXT).event())
            await client.write_event(SynthesizeStop().event())
            while not AudioStop.is_type((event := await next_event(client)).type):
                audio += AudioChunk.from_event(event).audio
            event = await next_event(client)
            assert SynthesizeStopped.is_type(event.type), event
            await client.write_event(Ping("more?").event())
            assert Pong.from_event(await next_event(client)).text == "more?"
            return check_speech("in pieces", pcm16(audio), rate, at_least_s=1.0)

    return asyncio.run(spoken())


def what_is_wrong_is_told():
    async def told():
        async with AsyncTcpClient(HOST, int(PORT)) as client:
            await client.write_event(Synthesize(TEXT, SynthesizeVoice(name="nobody")).event())
            error = Error.from_event(await next_event(client))
            assert "nobody" in error.text and error.code == "invalid_value", error
            assert await next_event(client) is None

    asyncio.run(told())


run(
    [
        it_is_found_on_the_network,
        it_tells_its_voices,
        a_whole_text_is_spoken_in_each_voice,
        speech_begins_before_the_text_has_ended,
        what_is_wrong_is_told,
    ]
)
