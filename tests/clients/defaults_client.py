"""Clients of OpenAI's speech at their defaults, as users install them: only the address is ours.

OpenAI's packages for Python and JavaScript, LiveKit's and Pipecat's services. What each plays is checked to be speech.
"""

import asyncio
import base64
import io
import os

import openai
import soundfile
from common import arguments, check_speech, javascript, pcm16, run

parser = arguments(__doc__)
parser.add_argument("--node-modules", default=os.environ.get("NODE_MODULES"), help="where openai for JavaScript is")
args = parser.parse_args()
BASE = f"{args.base_url}/v1"
TEXT = "The weather is lovely today, and tomorrow it will rain."
client = openai.OpenAI(base_url=BASE, api_key="sk-anything", max_retries=0, timeout=120)


def decoded(data):
    samples, rate = soundfile.read(io.BytesIO(data), dtype="int16")
    return pcm16(samples.tobytes()), rate


def openai_python_speaks_with_tts_1_and_alloy():
    answer = client.audio.speech.create(model="tts-1", voice="alloy", input=TEXT)
    return check_speech("the answer", *decoded(answer.content), 1)


def openai_python_streams():
    with client.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts", voice="coral", input=TEXT, response_format="mp3", instructions=""
    ) as answer:
        pieces = list(answer.iter_bytes(1024))
    assert len(pieces) > 3, len(pieces)
    return check_speech("mp3", *decoded(b"".join(pieces)), 1)


def openai_python_chats_in_speech():
    answer = client.chat.completions.create(
        model="gpt-4o-audio-preview",
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "wav"},
        messages=[{"role": "user", "content": "What is the capital of France?"}],
    )
    return check_speech("wav", *decoded(base64.b64decode(answer.choices[0].message.audio.data)))


def openai_python_knows_the_models():
    assert client.models.retrieve("tts-1").id == "tts-1"
    assert client.models.list().data[0].owned_by == "omni-actors"


def openai_javascript_speaks():
    return javascript("openai_client.mjs", args.node_modules, BASE)


def livekit_speaks():
    from livekit.agents import utils
    from livekit.plugins import openai as plugin

    async def speak():
        async with utils.http_context.open():
            speech = plugin.TTS(base_url=BASE, api_key="sk-anything")
            frames = [audio.frame async for audio in speech.synthesize(TEXT)]
            await speech.aclose()
        return frames

    frames = asyncio.run(speak())
    return check_speech("frames", pcm16(b"".join(bytes(frame.data) for frame in frames)), frames[0].sample_rate, 1)


def pipecat_speaks():
    from loguru import logger
    from pipecat.frames.frames import EndFrame, ErrorFrame, TTSAudioRawFrame, TTSSpeakFrame
    from pipecat.pipeline.pipeline import Pipeline
    from pipecat.pipeline.worker import PipelineWorker
    from pipecat.processors.frame_processor import FrameProcessor
    from pipecat.services.openai.tts import OpenAITTSService
    from pipecat.workers.runner import WorkerRunner

    logger.remove()

    class Listener(FrameProcessor):
        def __init__(self):
            super().__init__()
            self.heard, self.errors, self.rate = b"", [], 0

        async def process_frame(self, frame, direction):
            await super().process_frame(frame, direction)
            if isinstance(frame, TTSAudioRawFrame):
                self.heard, self.rate = self.heard + frame.audio, frame.sample_rate
            elif isinstance(frame, ErrorFrame):
                self.errors.append(frame.error)
            await self.push_frame(frame, direction)

    async def speak():
        listener = Listener()
        service = OpenAITTSService(base_url=BASE, api_key="sk-anything")
        worker = PipelineWorker(Pipeline([service, listener]))
        await worker.queue_frames([TTSSpeakFrame(TEXT), EndFrame()])
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(worker)
        await asyncio.wait_for(runner.run(), 60)
        return listener

    listener = asyncio.run(speak())
    assert not listener.errors, listener.errors
    return check_speech("frames", pcm16(listener.heard), listener.rate, 1)


run(
    [
        openai_python_speaks_with_tts_1_and_alloy,
        openai_python_streams,
        openai_python_chats_in_speech,
        openai_python_knows_the_models,
        openai_javascript_speaks,
        livekit_speaks,
        pipecat_speaks,
    ]
)
