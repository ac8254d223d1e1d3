"""The page in headless Chromium: types a text, presses the button, and listens to what comes out."""

from chromium import heard, options, page
from common import run

args = options(__doc__)


def it_speaks_what_is_typed():
    with page(args) as tab:
        tab.picture("page-idle")
        tab.type("Hello there. This is a page that speaks while the words are still being made.")
        tab.click("#speak")
        tab.until("__omni.samplesPlayed > 12000")
        tab.picture("page-speaking")
        note = heard(tab)
        tab.picture("page-done")
        stages = tab.value("[...document.querySelectorAll('#stages li b')].map((b) => b.textContent.trim())")
        assert stages == ["encoder", "thinker", "talker", "vocoder"], stages
        return note


def stop_stops_at_once_and_it_speaks_again():
    with page(args, "dark") as tab:
        tab.type("A rather long sentence that nobody wants to hear to its end, because it goes on and on and on. " * 2)
        tab.click("#speak")
        tab.until("__omni.samplesPlayed > 2400")
        tab.picture("page-dark")
        tab.click("#stop")
        assert tab.value("__omni.state") == "stopped"
        tab.type("Something else.")
        tab.click("#speak")
        return heard(tab)


def it_speaks_while_one_types():
    with page(args) as tab:
        tab.click("input[value=type] + span")
        tab.click("#speak")
        tab.until("document.querySelector('#speak').textContent === 'Finish'")
        for word in "This sentence is spoken. The next one is still being".split():
            tab.call("Input.insertText", text=word + " ")
        tab.until("__omni.samplesReceived > 0")  # before the text is complete
        assert tab.value("document.querySelector('#speak').textContent") == "Finish"
        tab.call("Input.insertText", text="written.")
        tab.click("#speak")
        return heard(tab)


def it_answers_a_question():
    with page(args) as tab:
        tab.click("input[value=ask] + span")
        tab.type("What is the capital of France?")
        tab.click("#speak")
        note = heard(tab)
        answer = tab.value("document.querySelector('#answer').textContent")
        assert answer.strip(), "no answer is shown"
        tab.picture("page-ask")
        return f"{answer!r}, {note}"


def it_talks_in_text_with_a_model_that_does_not_hear():
    with page(args) as tab:
        if "audio" in tab.value("inputs"):
            return "this one hears"
        tab.click("input[value=talk] + span")
        tab.click("#speak")
        tab.until("__omni.talk && document.querySelector('#status').textContent !== 'Connecting.'")
        assert "does not hear" in tab.shown("#status"), tab.shown("#status")
        answers = 0
        for text in ("What is the capital of France?", "And of Spain?"):
            answers += 1
            tab.type(text, "#words")
            tab.click("#send")
            tab.until(f"__omni.talk.answers === {answers} && !talk.answering")
        captions = tab.value("[...document.querySelectorAll('#captions li')].map((li) => [li.className, li.textContent])")
        assert [role for role, _ in captions] == ["user", "assistant"] * 2, captions
        assert all(text.strip() for _, text in captions), captions
        tab.picture("talk-text")
        tab.until("__omni.peak > 0.01")
        talk = tab.value("__omni.talk")
        tab.click("#stop")
        tab.until("__omni.state === 'stopped'")
        return f"{talk['latencyMs']:.0f} ms to the first sound, {captions[1][1]!r}"


run(
    [
        it_speaks_what_is_typed,
        stop_stops_at_once_and_it_speaks_again,
        it_speaks_while_one_types,
        it_answers_a_question,
        it_talks_in_text_with_a_model_that_does_not_hear,
    ]
)
