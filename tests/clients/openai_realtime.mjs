// OpenAI's realtime client for JavaScript, with a client secret as a page has it; realtime_client.py runs it. The
// argument is the base address.
import OpenAI from "openai";
import { OpenAIRealtimeWS } from "openai/realtime/ws";

const baseURL = process.argv[2];

function check(fine, what) {
  if (!fine) throw new Error(what);
}

const server = new OpenAI({ baseURL, apiKey: "sk-anything", maxRetries: 0 });
const secret = await server.realtime.clientSecrets.create({
  expires_after: { anchor: "created_at", seconds: 60 },
  session: { type: "realtime", instructions: "Be brief." },
});
check(secret.value.startsWith("ek_"), `no secret: ${secret.value}`);

const page = new OpenAI({ baseURL, apiKey: secret.value, maxRetries: 0 });
const session = new OpenAIRealtimeWS({ model: "gpt-realtime" }, page);
const seen = new Set();
let transcript = "";
let bytes = 0;
session.on("event", (event) => seen.add(event.type));
session.on("response.output_audio_transcript.delta", (event) => (transcript += event.delta));
session.on("response.output_audio.delta", (event) => (bytes += Buffer.from(event.delta, "base64").length));
session.on("session.created", (event) => {
  check(event.session.instructions === "Be brief.", "another session than the secret's");
  session.send({
    type: "conversation.item.create",
    item: { type: "message", role: "user", content: [{ type: "input_text", text: "What is the capital of France?" }] },
  });
  session.send({ type: "response.create" });
});
await new Promise((done, failed) => {
  session.on("error", failed);
  session.on("response.done", (event) => {
    if (event.response.status === "completed") done();
    else failed(new Error(JSON.stringify(event.response.status_details)));
  });
});
session.close();
check(transcript.trim(), "no transcript");
check(bytes > 4800, `${bytes} bytes of sound`);
console.log(`${transcript.trim()} (${(bytes / 48000).toFixed(2)} s, ${seen.size} kinds of events)`);
