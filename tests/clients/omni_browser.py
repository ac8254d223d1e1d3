"""The page in headless Chromium, before a model that hears and sees: a picture and a recording are dropped on it."""

import pathlib
import tempfile

from chromium import options, page
from common import run
from omni_media import photograph, recording

args = options(__doc__)
folder = pathlib.Path(tempfile.mkdtemp())
PICTURE, RECORDING = folder / "hills.png", folder / "vowels.wav"
PICTURE.write_bytes(photograph())
RECORDING.write_bytes(recording())


def answered(tab):
    """Waits for the answer, and says what the page sent of it."""
    tab.until("['done', 'failed'].includes(__omni.state)", 120)
    omni = tab.value("__omni")
    assert omni["state"] == "done" and omni["samplesReceived"] > 2000, omni
    return f"{omni['samplesReceived']} samples, first after {omni['ttfaMs']:.0f} ms"


def sent(tab):
    """The kinds of the parts of the question."""
    return tab.value("__omni.asked")


def dropped_files_are_shown_and_asked_about():
    with page(args) as tab:
        assert tab.value("document.querySelector('#media-field').hidden"), "media in a mode that has none"
        # Dropped where a text is spoken: a picture can only be asked about.
        tab.drop("#text", [PICTURE, RECORDING])
        tab.until("document.querySelectorAll('#shown li').length === 2", 10)
        assert tab.value("document.querySelector('input[name=mode]:checked').value") == "ask"
        assert tab.value("document.querySelector('#shown img').naturalWidth") == 800
        tab.type("What do you see, and what do you hear?")
        tab.picture("media-dropped")
        tab.click("#speak")
        tab.until("__omni.samplesPlayed > 0", 60)
        tab.picture("media-speaking")
        note = answered(tab)
        assert sent(tab) == ["image_url", "audio_url", "text"], sent(tab)
        tab.picture("media-done")
        stages = tab.value("[...document.querySelectorAll('#stages li b')].map((b) => b.textContent.trim())")
        assert stages == ["encoder", "thinker", "talker", "vocoder"], stages
        # However long a word of the answer is.
        assert tab.value("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than the window"
        return note


def a_file_is_taken_away_again():
    with page(args, "dark") as tab:
        tab.drop("body", [PICTURE, RECORDING])
        tab.until("document.querySelectorAll('#shown li').length === 2", 10)
        tab.picture("media-dark")
        tab.click("#shown li:first-child button")
        tab.until("document.querySelectorAll('#shown li').length === 1", 10)
        tab.click("#speak")
        note = answered(tab)
        assert sent(tab) == ["audio_url", "text"], sent(tab)
        return note


def files_that_are_no_media_are_told_of():
    with page(args) as tab:
        (folder / "notes.txt").write_text("not a picture")
        tab.drop("#text", [folder / "notes.txt"])
        tab.until("document.querySelector('#status').textContent.includes('notes.txt')", 10)
        assert tab.value("document.querySelectorAll('#shown li').length") == 0
        tab.picture("media-refused")


run([dropped_files_are_shown_and_asked_about, a_file_is_taken_away_again, files_that_are_no_media_are_told_of])
