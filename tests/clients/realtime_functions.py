"""Clients of the realtime protocol that are asked to call a function: OpenAI's package, Pipecat's service, LiveKit's
model.

The small models of the tests call nothing on purpose. So the session is the server's, and the answer that calls a
function is what it tells of one: `function_events.jsonl`, to which a test of the server holds it
(`routes::realtime::what_a_client_is_told_of_a_call_is_what_the_tests_of_clients_have`).
"""

import asyncio
import contextlib
import json
import pathlib

import openai
import websockets
from common import arguments, run

args = arguments(__doc__).parse_args()
SOCKET = args.base_url.replace("http", "ws", 1) + "/v1/realtime"
RECORDED = pathlib.Path(__file__).with_name("function_events.jsonl").read_text()
PATIENCE = 60


class Front:
    """In front of the server: answers what concerns items and responses from the record, and passes the rest on."""

    def __init__(self):
        self.results, self.said, self.answered = asyncio.Queue(), [], 0

    async def __aenter__(self):
        self.listener = await websockets.serve(self.serve, "127.0.0.1", 0)
        self.port = self.listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *why):
        self.listener.close()

    async def serve(self, client):
        async with websockets.connect(f"{SOCKET}?model=gpt-realtime", max_size=None) as server:

            async def back():
                async for text in server:
                    await client.send(text)

            returning = asyncio.create_task(back())
            with contextlib.suppress(websockets.ConnectionClosed):
                async for text in client:
                    await self.take(client, server, json.loads(text))
            returning.cancel()

    async def take(self, client, server, event):
        self.said.append(event["type"])
        if event["type"] == "conversation.item.create":
            item = {"id": "item_client", "object": "realtime.item", "status": "completed"} | event["item"]
            for kind in ("added", "done"):
                told = {"event_id": "e", "type": f"conversation.item.{kind}", "previous_item_id": None, "item": item}
                await client.send(json.dumps(told))
            if item["type"] == "function_call_output":
                await self.results.put(item)
        elif event["type"] == "response.create":
            # Once: what the model makes of the result is an answer like others.
            self.answered += 1
            metadata = event.get("response", {}).get("metadata")
            for line in RECORDED.splitlines() if self.answered == 1 else []:
                told = json.loads(line)
                if told["type"].startswith("conversation.item") and told["item"].get("role") == "user":
                    continue
                if "response" in told and metadata:
                    told["response"]["metadata"] = metadata
                await client.send(json.dumps(told))
        elif event["type"] not in ("response.cancel", "conversation.item.truncate"):
            await server.send(json.dumps(event))


def question(text):
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def openai_python_is_told_of_a_call():
    async def talk():
        async with Front() as front:
            client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{front.port}/v1", api_key="sk-anything")
            async with client.realtime.connect(model="gpt-realtime") as connection:
                await connection.conversation.item.create(item=question("How is the weather?"))
                await connection.response.create()
                seen = {}
                while "response.done" not in seen:
                    event = await connection.recv()
                    seen[event.type] = event
                called = seen["response.function_call_arguments.done"]
                assert json.loads(called.arguments) == {"at": "Oslo"} and called.name == "weather", called
                assert seen["response.function_call_arguments.delta"].delta == called.arguments
                output = seen["response.done"].response.output
                assert [item.type for item in output] == ["message", "function_call"], output
                assert output[1].call_id == called.call_id, output
                result = {"type": "function_call_output", "call_id": called.call_id, "output": "sunny"}
                await connection.conversation.item.create(item=result)
                assert (await front.results.get())["output"] == "sunny"
                return f"{len(seen)} kinds of events"

    return asyncio.run(asyncio.wait_for(talk(), PATIENCE))


def pipecat_calls_the_function_and_tells_its_result():
    from loguru import logger
    from pipecat.frames.frames import EndFrame, LLMRunFrame
    from pipecat.pipeline.pipeline import Pipeline
    from pipecat.pipeline.worker import PipelineWorker
    from pipecat.processors.aggregators.llm_context import LLMContext
    from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
    from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
    from pipecat.workers.runner import WorkerRunner

    logger.remove()

    async def talk():
        asked = []

        async def weather(call):
            asked.append(dict(call.arguments))
            await call.result_callback({"sky": "sunny"})

        async with Front() as front:
            base = f"ws://127.0.0.1:{front.port}/v1/realtime"
            service = OpenAIRealtimeLLMService(api_key="sk-anything", base_url=base)
            service.register_function("weather", weather)
            # Not in the session: the model of this server has no place for functions.
            context = LLMContext([{"role": "user", "content": "How is the weather?"}])
            pair = LLMContextAggregatorPair(context)
            worker = PipelineWorker(Pipeline([pair.user(), service, pair.assistant()]))
            runner = WorkerRunner(handle_sigint=False)
            await runner.add_workers(worker)

            async def drive():
                await worker.queue_frame(LLMRunFrame())
                try:
                    return await asyncio.wait_for(front.results.get(), PATIENCE)
                finally:
                    await worker.queue_frame(EndFrame())

            _, result = await asyncio.gather(runner.run(), drive())
            assert asked == [{"at": "Oslo"}] and json.loads(result["output"]) == {"sky": "sunny"}, (asked, result)
            return f"{len(front.said)} events sent"

    return asyncio.run(asyncio.wait_for(talk(), PATIENCE))


def livekit_is_told_of_a_call():
    from livekit.agents import utils
    from livekit.agents.llm import ChatContext, FunctionCallOutput
    from livekit.plugins import openai as plugin

    async def talk():
        async with Front() as front, utils.http_context.open():
            base = f"http://127.0.0.1:{front.port}/v1"
            model = plugin.realtime.RealtimeModel(base_url=base, api_key="sk-anything", turn_detection=None)
            session = model.session()
            chat = ChatContext.empty()
            chat.add_message(role="user", content="How is the weather?")
            await session.update_chat_ctx(chat)
            generation = await session.generate_reply()
            calls = [call async for call in generation.function_stream]
            assert [(call.name, json.loads(call.arguments)) for call in calls] == [("weather", {"at": "Oslo"})], calls
            chat = session.chat_ctx.copy()
            chat.items.append(FunctionCallOutput(call_id=calls[0].call_id, output="sunny", is_error=False))
            await session.update_chat_ctx(chat)
            result = await front.results.get()
            assert (result["call_id"], result["output"]) == (calls[0].call_id, "sunny"), result
            await session.aclose()
            await model.aclose()
            return f"{len(front.said)} events sent"

    return asyncio.run(asyncio.wait_for(talk(), PATIENCE))


run(
    [
        openai_python_is_told_of_a_call,
        pipecat_calls_the_function_and_tells_its_result,
        livekit_is_told_of_a_call,
    ]
)
