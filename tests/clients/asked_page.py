"""The page in headless Chromium, before the embedded voice: its microphone is a file with spoken questions, by voices that
the ears were not trained on. Each is understood, written down and answered, in one conversation."""

import pathlib
import tempfile
import wave

import chromium
from common import run

parser = chromium.parser(__doc__)
parser.add_argument("--questions", type=int, default=4, help="how many in a row")
args = parser.parse_args()

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "data" / "asked"
RATE = 16000
#: Silence behind each question: an answer is spoken in it.
PAUSE = 4.5
ASKED = [
    ("capital", "What is the capital of France?", "The capital of France is Paris."),
    ("sum", "What is seven plus eight?", "Seven plus eight is fifteen."),
    ("say", "Say: The weather is lovely today.", "The weather is lovely today."),
    ("color", "What color is the sky?", "The sky is blue."),
    ("opposite", "What is the opposite of hot?", "The opposite of hot is cold."),
    ("spell", "How do you spell house?", "H, O, U, S, E."),
    ("count", "Count from one to five.", "One, two, three, four, five."),
]


def microphone(folder, questions):
    """Flags for a microphone that hears these, one after the other."""
    pieces = [bytes(2 * RATE)]
    for name, _, _ in questions:
        with wave.open(str(FOLDER / f"{name}.wav")) as question:
            assert question.getframerate() == RATE, name
            pieces.append(question.readframes(question.getnframes()))
        pieces.append(bytes(2 * int(PAUSE * RATE)))
    return chromium.microphone_of(folder, RATE, [*pieces, bytes(2 * RATE * 60)])


def spoken_questions_are_understood_and_answered_in_a_row():
    questions = [ASKED[k % len(ASKED)] for k in range(args.questions)]
    with tempfile.TemporaryDirectory() as folder, chromium.page(args, "light", microphone(folder, questions)) as tab:
        tab.click("input[value=talk] + span")
        tab.click("#speak")
        tab.until("__omni.talk && document.querySelector('#status').textContent !== 'Connecting.'")
        latencies = []
        for k in range(1, len(questions) + 1):
            tab.until(f"__omni.talk.answers >= {k} && __omni.talk.latencyMs > 0", 30)
            latencies.append(tab.value("__omni.talk.latencyMs"))
            if k == 1:
                tab.picture("asked-first")
        tab.until("!talk.answering && !document.querySelector('#captions li.user:empty')", 30)
        lines = "[...document.querySelectorAll('#captions li')].map((li) => [li.className, li.textContent])"
        tab.until(f"({lines}).length >= {2 * len(questions)}", 30)
        tab.picture("asked")
        captions = tab.value(lines)
        assert [text for role, text in captions if role == "assistant"] == [answer for _, _, answer in questions], captions
        written = [text for role, text in captions if role == "user"]
        right = sum(text == said for text, (_, said, _) in zip(written, questions, strict=True))
        # What is written down is a second answer of the model, and the page need not show what is understood all right.
        assert right * 2 >= len(questions), captions
        tab.click("#stop")
        return f"{right} of {len(questions)} written down exactly; first sound after the end of the turn {sorted(latencies)[len(latencies) // 2]:.0f} ms (median of {len(latencies)})"


run([spoken_questions_are_understood_and_answered_in_a_row])
