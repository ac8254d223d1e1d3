"""Pipecat's realtime service in a pipeline of its own: turns that it ends itself, an interruption, turns that the
server finds in speech.

Needs two servers: one that hears, and one whose voice speaks what it hears.
"""

import asyncio
import json
import urllib.request

from common import arguments, run
from loguru import logger
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMRunFrame,
    TTSAudioRawFrame,
    TTSTextFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.openai.realtime import events
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.workers.runner import WorkerRunner

parser = arguments(__doc__)
parser.add_argument("--voice-url", required=True, help="where the server is that speaks to this one")
args = parser.parse_args()
logger.remove()

RATE = 24000
PATIENCE = 120


class Sink(FrameProcessor):
    """What came behind the service."""

    def __init__(self):
        super().__init__()
        self.frames, self.news = [], asyncio.Event()

    async def process_frame(self, frame, direction):
        await super().process_frame(frame, direction)
        self.frames.append(frame)
        self.news.set()
        await self.push_frame(frame, direction)

    def count(self, kind):
        return sum(isinstance(frame, kind) for frame in self.frames)

    async def until(self, kind, count=1):
        while self.count(kind) < count:
            assert not self.count(ErrorFrame), [frame for frame in self.frames if isinstance(frame, ErrorFrame)]
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), 60)


def pipeline(turns, tokens, talk, question=None):
    """Has `talk(worker, sink)` drive a pipeline with the service at its defaults but for these."""

    async def whole():
        audio = events.AudioConfiguration(input=events.AudioInput(turn_detection=turns))
        properties = events.SessionProperties(audio=audio, max_output_tokens=tokens)
        service = OpenAIRealtimeLLMService(
            api_key="sk-anything",
            base_url=args.base_url.replace("http", "ws", 1) + "/v1/realtime",
            settings=OpenAIRealtimeLLMService.Settings(session_properties=properties),
        )
        said, sends = [], service._ws_send

        async def send(message):
            said.append(message["type"])
            await sends(message)

        service._ws_send = send
        sink = Sink()
        context = LLMContext([{"role": "user", "content": question}] if question else [])
        pair = LLMContextAggregatorPair(context)
        worker = PipelineWorker(Pipeline([pair.user(), service, sink, pair.assistant()]))
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(worker)

        async def drive():
            await worker.queue_frame(LLMRunFrame())
            try:
                await talk(worker, sink)
            finally:
                await worker.queue_frame(EndFrame())

        await asyncio.gather(runner.run(), drive())
        return said, sink, context.get_messages()

    return asyncio.run(asyncio.wait_for(whole(), PATIENCE))


def sound(pcm):
    return InputAudioRawFrame(audio=pcm, sample_rate=RATE, num_channels=1)


def turns_that_pipecat_ends_are_answered_and_interrupted():
    async def talk(worker, sink):
        await sink.until(TTSAudioRawFrame)
        await worker.queue_frames([UserStartedSpeakingFrame(), InterruptionFrame()])
        await sink.until(LLMFullResponseEndFrame)
        heard = sink.count(TTSAudioRawFrame)
        await worker.queue_frames([sound(bytes(RATE // 5)) for _ in range(10)])
        await worker.queue_frame(UserStoppedSpeakingFrame())
        await sink.until(TTSAudioRawFrame, heard + 1)

    said, sink, messages = pipeline(False, 60, talk, "What is the capital of France?")
    wanted = ["session.update", "conversation.item.create", "response.create", "input_audio_buffer.clear"]
    wanted += ["response.cancel", "conversation.item.truncate"]
    wanted += ["input_audio_buffer.append", "input_audio_buffer.commit"]
    assert not set(wanted) - set(said), said
    assert sink.count(TTSTextFrame) > 1 and messages[1]["role"] == "assistant", messages
    return f"{len(said)} events sent, {sink.count(TTSAudioRawFrame)} pieces of sound"


def turns_that_the_server_finds_are_answered():
    text = "Good morning. Could you tell me the time?"
    body = json.dumps({"input": text, "seed": 3, "response_format": "pcm"}).encode()
    request = urllib.request.Request(f"{args.voice_url}/v1/audio/speech", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        speech = answer.read() + bytes(2 * RATE)

    async def talk(worker, sink):
        for at in range(0, len(speech), RATE // 25):
            await worker.queue_frame(sound(speech[at : at + RATE // 25]))
        await sink.until(UserStartedSpeakingFrame)
        await sink.until(UserStoppedSpeakingFrame)
        await sink.until(TTSAudioRawFrame)
        await sink.until(LLMFullResponseEndFrame)

    said, sink, _ = pipeline(None, 8, talk)
    assert "input_audio_buffer.commit" not in said, said
    return f"{sink.count(TTSAudioRawFrame)} pieces of sound"


run([turns_that_pipecat_ends_are_answered_and_interrupted, turns_that_the_server_finds_are_answered])
