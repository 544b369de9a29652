import sys

from neuroshard_pipeline.search import progress


class Terminal:
    encoding = "utf-8"

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    def isatty(self):
        return True


def test_a_long_search_shows_a_bar_on_a_terminal_and_a_short_one_does_not(monkeypatch):
    for delay, shown in ((0.0, True), (60.0, False)):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(progress, "_DELAY_SECONDS", delay)
        assert list(progress.with_progress(5, "column splits")) == [0, 1, 2, 3, 4]
        assert ("column splits" in terminal.text) == shown
