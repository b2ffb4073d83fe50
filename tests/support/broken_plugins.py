"""Plugins that are broken, each in one way, and what axcore prints where it meets one.

`docs/plugins/failures.md` is written from these cases by `python tools/write_failures.py`; a test
runs each, and compares what is printed with the page.
"""

import contextlib
import importlib
import os
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs

import axcore.cli.doctor as doctor
from axcore.cli.main import error_text
from axcore.plugins import plugin_host
from axcore.plugins.loading import TIMEOUT
from axcore.plugins.time_limit import CALLBACK_TIMEOUT
from axcore.testing import make_dist

NAME = "axl-acme"

HEAD = "from axcore.plugins import *\n"

HANG = "while not hasattr(sys, 'axl_acme_may_end'): time.sleep(0.01)"
"""What a plugin does that hangs: on one line, so that the page always names the same."""

Meet = Callable[[], Any]


@attrs.frozen
class BrokenPlugin:
    """A plugin that is broken in one way.

    Args:
        group: Of the page.
        what: What is wrong, as a sentence of the page.
        names: What the message must contain in addition to the plugin's name: the record, hook or
            file.
        plugin: Its module `axl_acme.plugin`.
        meet: What meets it; returns what is shown, where it is not an error and no warning.
        code: Its module `axl_acme.code`.
        change: What else is done to the files of the distribution, given their folder.
    """

    group: str
    what: str
    names: str
    plugin: str
    meet: Meet
    code: str = ""
    change: Callable[[Path], object] = lambda folder: None

    def printed(self) -> str:
        """Returns what is printed, with folders and addresses as the page has them."""
        with tempfile.TemporaryDirectory() as folder, _installed(self, Path(folder)):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    shown = self.meet()
                except (Exception, SystemExit) as error:
                    shown = error_text(error)
            lines = [f"warning: {one.message}" for one in caught if one.category is UserWarning]
            text = "\n".join([*lines, *([shown] if isinstance(shown, str) else [])])
            text = text.replace(folder, "site-packages")
        return re.sub(r"x[0-9a-f]{6,}", "x...", text)


@contextlib.contextmanager
def _installed(case: BrokenPlugin, root: Path) -> Iterator[None]:
    package = make_dist(root, NAME, case.plugin, files={"code.py": case.code})
    case.change(root)
    before, variables, limit_s = {*sys.modules}, dict(os.environ), doctor.TIMEOUT_S
    sys.path.insert(0, str(root / "all.zip" if (root / "all.zip").exists() else root))
    os.environ |= {"AXCORE_PLUGINS": NAME, TIMEOUT: "0.5", CALLBACK_TIMEOUT: "0.2"}
    doctor.TIMEOUT_S = 0.2
    importlib.invalidate_caches()
    plugin_host.cache_clear()
    try:
        yield
    finally:
        sys.axl_acme_may_end = True  # type: ignore[attr-defined]
        for thread in threading.enumerate():
            if HANG in case.plugin and thread.name == f"calls of {package.name}":
                thread.join(10)  # one that hangs in an import keeps its module locked
        del sys.axl_acme_may_end  # type: ignore[attr-defined]
        sys.path.pop(0)
        os.environ.clear()
        os.environ.update(variables)
        doctor.TIMEOUT_S = limit_s
        for name in {*sys.modules} - before:
            if name.partition(".")[0] == package.name:
                del sys.modules[name]
        plugin_host.cache_clear()


def brings(hook: str, record: str) -> str:
    """Returns the source of a plugin with one record."""
    return f"{HEAD}@hook.{hook}\ndef {hook}():\n    yield {record}\n"


def started() -> None:
    """Starts a run, as far as plugins can keep it from that."""
    plugin_host().require_healthy()
