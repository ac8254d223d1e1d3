// OpenAI's package for JavaScript at its defaults; defaults_client.py runs it. The argument is the base address.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "sk-anything", maxRetries: 0 });
const input = "The weather is lovely today, and tomorrow it will rain.";

function check(fine, what) {
  if (!fine) throw new Error(what);
}

const whole = await client.audio.speech.create({ model: "tts-1", voice: "alloy", input });
const file = Buffer.from(await whole.arrayBuffer());
check(file.subarray(0, 4).toString() === "RIFF" && file.readUInt32LE(4) === file.length - 8, "no wav file");
check(file.length > 48000, `only ${file.length} bytes`);
console.log(`wav of ${file.length} bytes`);

const streamed = await client.audio.speech.create({
  model: "gpt-4o-mini-tts",
  voice: "nova",
  input,
  response_format: "pcm",
});
let bytes = 0;
let peak = 0;
let pieces = 0;
for await (const piece of streamed.body) {
  bytes += piece.length;
  pieces += 1;
  peak = Math.max(peak, ...piece.filter((_, at) => at % 97 === 0));
}
check(bytes > 48000 && bytes % 2 === 0 && peak > 0 && pieces > 1, `${bytes} bytes in ${pieces} pieces`);
console.log(`pcm of ${bytes} bytes in ${pieces} pieces`);

const chat = await client.chat.completions.create({
  model: "gpt-4o-audio-preview",
  messages: [{ role: "user", content: "What is the capital of France?" }],
  stream: true,
});
let text = "";
for await (const chunk of chat) text += chunk.choices[0]?.delta?.content ?? "";
check(text.trim(), "no text");
console.log(`chat: ${text}`);
