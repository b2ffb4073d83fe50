"""Does what a page says, in one process: commands as `axcore` runs them, and programs, in order.

    python page_session.py < STEPS

A server is asked for a completion and for its page, says that it answered, and is ended.

Each step is `{"command": WORDS}` or `{"script": PATH}`; a line of JSON on each goes to the file
that the first argument names: its exit code and what it printed.
"""

import contextlib
import io
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ANSWERED = "a completion and the page were answered"
"""What is printed of a server that did."""


class Done(NamedTuple):
    """How a step ended: its exit code and what it printed."""

    exit_code: int
    printed: str


def run_session(
    steps: Sequence[Mapping[str, Any]], *, cwd: Path, env: Mapping[str, str]
) -> tuple[list[Done], str]:
    """Returns how the steps that were reached ended, and what was printed as errors."""
    told = cwd / "session.jsonl"
    ran = subprocess.run(
        [sys.executable, __file__, str(told)],
        input=json.dumps(steps),
        cwd=cwd,
        env=dict(env),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = told.read_text(encoding="utf-8").splitlines() if told.exists() else []
    return [Done(*json.loads(line)) for line in lines], ran.stderr


def _run(step: Mapping[str, Any]) -> Done:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            if "script" in step:
                runpy.run_path(step["script"], run_name="__main__")
            else:
                from axcore.cli.main import main

                if step["command"][0] == "serve":
                    threading.Thread(target=_end_server, args=(out,), daemon=True).start()
                main(step["command"])
        except SystemExit as end:
            return Done(int(end.code or 0), out.getvalue())
    return Done(0, out.getvalue())


def _end_server(out: io.StringIO) -> None:
    """Ends a server when it has answered a completion and shown its page."""
    while (found := re.search(r"http://[\d.:]+/", out.getvalue())) is None:
        time.sleep(0.05)
    try:
        asked = {"prompt": "def ", "max_tokens": 4}
        answer = json.loads(_answer(f"{found[0]}v1/completions", asked))
        assert answer["usage"]["completion_tokens"] <= 4, answer
        assert "<h1" in _answer(found[0])
        print(ANSWERED, file=out)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def _answer(url: str, body: Mapping[str, Any] | None = None) -> str:
    """Returns what a server answers with status 200."""
    sent = {"content-type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, sent), timeout=60) as response:
        assert response.status == 200
        text: str = response.read().decode()
        return text


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as told:
        for step in json.load(sys.stdin):
            done = _run(step)
            print(json.dumps(done), file=told, flush=True)
            if done.exit_code:
                break
