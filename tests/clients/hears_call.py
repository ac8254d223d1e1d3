"""A call over WebRTC from headless Chromium, whose microphone is a file: what docs/realtime.md has a page do.

Needs two servers: one that hears and takes at most two calls, and one whose voice is understood as speech, which speaks
the file.
"""

import contextlib
import tempfile
import time

import chromium
from common import run

parser = chromium.parser(__doc__)
parser.add_argument("--voice-url", required=True, help="where the server is that speaks into the microphone")
args = parser.parse_args()

#: Of the sound in the remote track: louder than this is speech. Silence of Opus is some ten thousandths.
LOUD = 0.01
#: How long a browser may go on sounding after the server has cut: its jitter buffer, and the window of the level.
CUT_MS = 250

#: A call, its events with the time of each, and the level of the remote track every few milliseconds.
CALLER = """
window.dial = async (session, { microphone = true, headers = {} } = {}) => {
  const pc = new RTCPeerConnection(), events = [], levels = [], call = { pc, events, levels, told: [] };
  const context = (call.context = new AudioContext());
  pc.ontrack = ({ streams: [stream] }) => {
    call.audio = Object.assign(new Audio(), { srcObject: stream, autoplay: true });
    const analyser = new AnalyserNode(context, { fftSize: 512 }), samples = new Float32Array(512);
    new MediaStreamAudioSourceNode(context, { mediaStream: stream }).connect(analyser);
    call.timer = setInterval(() => {
      analyser.getFloatTimeDomainData(samples);
      levels.push([performance.now(), samples.reduce((most, sample) => Math.max(most, Math.abs(sample)), 0)]);
    }, 5);
  };
  if (microphone) {
    const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    pc.addTrack(stream.getTracks()[0], stream);
  } else pc.addTransceiver("audio", { direction: "recvonly" });
  const channel = (call.channel = pc.createDataChannel("oai-events"));
  channel.onmessage = ({ data }) => {
    const event = JSON.parse(data);
    events.push({ at: performance.now(), ...event });
  };
  call.begun = performance.now();
  channel.onopen = () => { call.open = performance.now(); };
  channel.onclose = () => { call.closed = performance.now(); };
  call.send = (event) => channel.send(JSON.stringify(event));
  await pc.setLocalDescription();
  const form = new FormData();
  form.append("sdp", pc.localDescription.sdp);
  form.append("session", JSON.stringify({ type: "realtime", ...session }));
  const answer = await fetch("/v1/realtime/calls", { method: "POST", body: form, headers });
  call.status = answer.status;
  call.location = answer.headers.get("location");
  const text = await answer.text();
  if (answer.status === 201) await pc.setRemoteDescription({ type: "answer", sdp: text });
  else { call.refusal = JSON.parse(text).error; pc.close(); }
  call.sdp = [pc.localDescription?.sdp, text];
  return call;
};
window.inbound = async (call) => {
  for (const report of (await call.pc.getStats()).values())
    if (report.type === "inbound-rtp" && report.kind === "audio") return { ...report };
};
"""

#: Turns are found; answers are long enough to be spoken into.
TALK = """{
  max_output_tokens: 100,
  audio: { input: { turn_detection: { type: "server_vad" }, transcription: {} } },
}"""
#: Turns are the test's.
WRITE = "{ max_output_tokens: %d, audio: { input: { turn_detection: null } } }"


@contextlib.contextmanager
def tab_with(flags=()):
    with chromium.page(args, "light", list(flags)) as tab:
        tab.value(CALLER)
        yield tab


def dial(tab, session, name="call", options="{}"):
    """Calls, and waits until events can be told."""
    tab.value(f"dial({session}, {options}).then((call) => {{ window.{name} = call; }})")
    assert tab.value(f"{name}.status") == 201, tab.value(f"{name}.refusal")
    tab.until(f"{name}.events.some((event) => event.type === 'session.created')", 30)


def event(tab, kind, name="call", seconds=60):
    """The first event of a type, once it has come."""
    tab.until(f"{name}.events.some((event) => event.type === {kind!r})", seconds)
    return tab.value(f"{name}.events.find((event) => event.type === {kind!r})")


def ask(tab, text, name="call"):
    item = f"{{ type: 'message', role: 'user', content: [{{ type: 'input_text', text: {text!r} }}] }}"
    tab.value(f"{name}.send({{ type: 'conversation.item.create', item: {item} }})")
    tab.value(f"{name}.send({{ type: 'response.create' }})")


def gauge(name):
    """A figure of the server's."""
    text = chromium.fetch(f"{args.base_url}/metrics").decode()
    return sum(float(line.split(" ")[1]) for line in text.splitlines() if line.split(" ")[0].split("{")[0] == name)


def nobody_is_left():
    end = time.monotonic() + 30
    while gauge("omni_realtime_calls"):
        assert time.monotonic() < end, "a call that is over stays open"
        time.sleep(0.05)


def who_speaks_is_answered_and_who_goes_on_interrupts():
    with tempfile.TemporaryDirectory() as folder, tab_with(chromium.microphone(folder, args.voice_url)) as tab:
        dial(tab, TALK)
        assert tab.value("call.pc.sctp.transport.iceTransport.getSelectedCandidatePair().remote.type") == "host"
        started = event(tab, "input_audio_buffer.speech_started")
        event(tab, "input_audio_buffer.committed")
        said = event(tab, "output_audio_buffer.started")
        # What is played is heard.
        tab.until(f"call.levels.some(([at, level]) => at > {said['at']} && level > {LOUD})", 10)
        heard = tab.value(f"call.levels.find(([at, level]) => at > {said['at']} && level > {LOUD})[0]") - said["at"]
        # The file goes on, so the user speaks into one of the answers.
        cleared = event(tab, "output_audio_buffer.cleared", seconds=150)
        truncated = event(tab, "conversation.item.truncated")
        tab.until(f"performance.now() > {cleared['at']} + 3 * {CUT_MS}")
        # The last loud moment before the next answer is heard.
        last = tab.value(f"""(() => {{
          const next = call.events.find((event) => event.type.endsWith("buffer.started") && event.at > {cleared["at"]});
          const until = next ? next.at : Infinity;
          const loud = call.levels.filter(([at, level]) => level > {LOUD} && at < until);
          return loud.length ? loud.at(-1)[0] : 0;
        }})()""")
        rest = last - cleared["at"]
        assert rest < CUT_MS, f"the answer sounds for {rest:.0f} ms after it was cut"
        transcripts = "call.events.filter((event) => event.type.endsWith('input_audio_transcription.completed'))"
        tab.until(f"{transcripts}.length > 0")
        kinds = tab.value("[...new Set(call.events.map((event) => event.type))]")
        assert "response.output_audio.delta" not in kinds and "error" not in kinds, kinds
        report = tab.value("inbound(call)")
        assert report["packetsReceived"] > 20 and report["packetsLost"] == 0, report
        assert report["bytesReceived"] > 20 * report["packetsReceived"], report
        tab.value("call.pc.close()")
        nobody_is_left()
        return (
            f"open after {tab.value('call.open - call.begun'):.0f} ms, heard {heard:.0f} ms after it was begun, cut at "
            f"{truncated['audio_end_ms']} ms, silent {max(rest, 0):.0f} ms after that, {started['audio_start_ms']} ms"
        )


def an_answer_is_heard_without_a_hole():
    with tab_with() as tab:
        # No microphone: it is asked in writing.
        dial(tab, WRITE % 60, options="{ microphone: false }")
        before = tab.value("inbound(call)") or {}
        ask(tab, "Tell me a story")
        said = event(tab, "output_audio_buffer.started")
        stopped = event(tab, "output_audio_buffer.stopped")
        report = tab.value("inbound(call)")
        seconds = (stopped["at"] - said["at"]) / 1000
        packets = report["packetsReceived"] - before.get("packetsReceived", 0)
        # 20 ms each.
        assert abs(packets / 50 - seconds) < 0.5, f"{packets} packets in {seconds:.2f} s"
        loud = tab.value(f"""(() => {{
          const during = call.levels.filter(([at]) => at > {said["at"]} && at < {stopped["at"]});
          return during.filter(([, level]) => level > {LOUD}).length / during.length;
        }})()""")
        assert loud > 0.6, f"loud in {loud:.2f} of the time"
        assert report["packetsLost"] == 0, report
        # What is made up while nobody speaks is silent.
        concealed = report["concealedSamples"] - report.get("silentConcealedSamples", 0)
        assert concealed < 0.1 * report["totalSamplesReceived"], report
        tab.value("call.pc.close()")
        nobody_is_left()
        return f"{packets} packets in {seconds:.2f} s, {report['bytesReceived']} bytes, {concealed} samples concealed"


def what_is_cleared_is_heard_no_more():
    with tab_with() as tab:
        dial(tab, WRITE % 120, options="{ microphone: false }")
        ask(tab, "Tell me a story")
        said = event(tab, "output_audio_buffer.started")
        tab.until(f"call.levels.filter(([at, level]) => at > {said['at']} && level > {LOUD}).length > 20")
        tab.value("call.cleared = performance.now(), call.send({ type: 'output_audio_buffer.clear' })")
        event(tab, "output_audio_buffer.cleared")
        truncated = event(tab, "conversation.item.truncated")
        tab.until(f"performance.now() > call.cleared + 3 * {CUT_MS}")
        rest = tab.value(f"call.levels.findLast(([, level]) => level > {LOUD})[0] - call.cleared")
        assert rest < CUT_MS, f"the answer sounds for {rest:.0f} ms after it was cut"
        played = tab.value("call.cleared") - said["at"]
        # The server knows what was heard, to the piece of 20 ms and the way there.
        assert abs(truncated["audio_end_ms"] - played) < CUT_MS, (truncated, played)
        tab.value("call.pc.close()")
        return f"silent {max(rest, 0):.0f} ms after it was asked, {truncated['audio_end_ms']} of {played:.0f} ms"


def calls_are_hung_up_and_refused_when_there_are_too_many():
    with tab_with() as tab:
        for name in ("first", "second"):
            dial(tab, WRITE % 10, name, "{ microphone: false }")
        tab.value(f"dial({WRITE % 10}, {{ microphone: false }}).then((call) => {{ window.third = call; }})")
        assert tab.value("third.status") == 503, tab.value("third.status")
        assert "realtime.webrtc.max_calls" in tab.value("third.refusal.message"), tab.value("third.refusal")
        tab.problems.clear()  # the browser notes the 503
        assert tab.value("fetch(first.location + '/hangup', { method: 'POST' }).then((answer) => answer.status)") == 200
        tab.until("first.closed && first.pc.connectionState !== 'connected'", 20)
        tab.until("second.pc.connectionState === 'connected'")
        dial(tab, WRITE % 10, "fourth", "{ microphone: false }")
        tab.value("second.pc.close(), fourth.pc.close()")
        nobody_is_left()
        return f"closed as {tab.value('first.pc.connectionState')}"


run(
    [
        who_speaks_is_answered_and_who_goes_on_interrupts,
        an_answer_is_heard_without_a_hole,
        what_is_cleared_is_heard_no_more,
        calls_are_hung_up_and_refused_when_there_are_too_many,
    ]
)
