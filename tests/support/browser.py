"""A headless browser, where there is one: what a page becomes when its scripts have run."""

import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0")


def browser_path() -> str:
    """Returns the browser; the test is skipped where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed")
    return found


def page_in_browser(address: str, *, width: int = 1280, wait_ms: int = 2000) -> str:
    """Returns the document of an address after its scripts; one that fails in the console fails."""
    command = [
        browser_path(),
        *FLAGS,
        f"--window-size={width},2000",
        f"--virtual-time-budget={wait_ms}",
    ]
    done = subprocess.run(
        [*command, "--dump-dom", address], capture_output=True, text=True, timeout=60, check=True
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


def page_of_file(path: Path, **options: int) -> str:
    """Returns the document of a file, likewise."""
    return page_in_browser(path.resolve().as_uri(), **options)
