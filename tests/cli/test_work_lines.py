"""What commands show of long work on stderr, and that short work shows nothing."""

import io
import threading

import pytest
from rich.console import Console

from axcore.cli.loading_display import LoadingDisplay
from axcore.cli.work_lines import WorkLines, work_text
from axcore.progress import Work, heard_by, working


class Screen(io.StringIO):
    """A stream that says whether it is a terminal, and when something was printed."""

    def __init__(self, *, is_terminal):
        super().__init__()
        self.is_terminal = is_terminal
        self.printed = threading.Event()

    def isatty(self):
        return self.is_terminal

    def write(self, text):
        count = super().write(text)
        self.printed.set()
        return count


def test_short_work_shows_nothing():
    screen = Screen(is_terminal=False)
    with WorkLines(3600.0, screen) as lines, heard_by(lines), working("reading", 9) as work:
        work.add(9)
    assert screen.getvalue() == ""


def test_long_work_is_shown_while_it_goes_and_when_it_ends():
    screen = Screen(is_terminal=False)
    with WorkLines(0.0, screen) as lines, heard_by(lines), working("reading weights", 3 * 10**9):
        assert screen.printed.wait(60)
    shown = screen.getvalue().splitlines()
    assert shown[0].startswith("reading weights: 3.0 GB, ")
    assert shown[-1].startswith("reading weights: 3.0 GB in ")


def test_a_terminal_has_one_line_that_changes():
    screen = Screen(is_terminal=True)
    with WorkLines(0.0, screen) as lines, heard_by(lines), working("restoring", 5_000) as work:
        work.add(2_000)
        assert screen.printed.wait(60)
    shown = screen.getvalue()
    assert shown.endswith(" s\n")
    assert shown.count("\n") == 1
    assert shown.startswith("\r\x1b[Krestoring: ")
    assert "\r\x1b[Krestoring: 5.0 kB in " in shown


def _fail(screen):
    with WorkLines(0.0, screen) as lines, heard_by(lines), working("writing", 12):
        assert screen.printed.wait(60)
        raise OSError("full")


def test_work_that_fails_says_so():
    screen = Screen(is_terminal=False)
    with pytest.raises(OSError, match="full"):
        _fail(screen)
    assert screen.getvalue().splitlines()[-1].startswith("writing: 12 bytes failed after ")


@pytest.mark.parametrize(
    ("done", "text"), [(0, "writing: 4.2 MB"), (1_500, "writing: 1.5 kB of 4.2 MB")]
)
def test_the_text_says_how_far_work_is(done, text):
    assert work_text(Work("writing", 4_200_000, done)) == text


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_server_that_loads_shows_work_in_its_phase(is_terminal):
    stream = Screen(is_terminal=is_terminal)
    console = Console(file=stream, force_terminal=is_terminal, width=120, _environ={})
    with LoadingDisplay(console) as display, heard_by(display.hear):
        display.begin("loading", "runs/tiny")
        display._began -= 10.0
        with working("reading weights", 2_000) as work:
            work.add(1_000)
    shown = stream.getvalue()
    assert "reading weights" in shown
    assert ("loading: reading weights: 2.0 kB" in shown) is not is_terminal
