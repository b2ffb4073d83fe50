"""`axcore watch`: runs while they train, in the terminal or in a browser."""

import json
import math
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click

from axcore.cli import options
from axcore.cli.options import complete_run, escape_control_characters
from axcore.errors import ConfigError

SECONDS = 1.0
"""Between two looks at the files of a run."""

AXES = ("step", "tokens", "seconds")
_BARS = "▁▂▃▄▅▆▇█"
CURVE_WIDTH, SAMPLE_WIDTH = 40, 72


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN...]", shell_complete=complete_run)
@click.option("--port", type=click.IntRange(0, 65535), help="Show a page there, 0 for any.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of that page.")
@click.option("--once", is_flag=True, help="Look once, and end.")
@options.trust_code
@options.as_json
def watch(
    runs: tuple[str, ...],
    port: int | None,
    host: str,
    once: bool,
    trust_code: bool,
    as_json: bool,
) -> None:
    """Watch each RUN as it trains; by default all in runs.

    It reads their files, from any machine that sees them, and changes nothing.
    """
    directories = runs or _all_runs()
    if port is not None:
        _serve(directories, host, port, trust_code=trust_code)
    elif once or as_json or not sys.stdout.isatty():
        found = _look(directories, trust_code=trust_code)
        click.echo(json.dumps(found) if as_json else "\n".join(map(_line, found)))
    else:
        _show(directories, trust_code=trust_code)


def _all_runs() -> tuple[str, ...]:
    from axcore.resilience.run_summary import find_runs

    found = tuple(map(str, find_runs(Path("runs"))))
    if not found:
        raise ConfigError("there are no runs in runs", hint="name a run directory")
    return found


def _look(directories: tuple[str, ...], *, trust_code: bool) -> list[dict[str, Any]]:
    import attrs

    from axcore.runs import run_facts

    return [attrs.asdict(run_facts(one, trust_code=trust_code)) for one in directories]


def _newest(run: dict[str, Any], split: str, name: str) -> float | None:
    values = run["curves"].get(split, {}).get(name, [])
    return next((value for value in reversed(values) if value is not None), None)


def _values(run: dict[str, Any]) -> list[tuple[str, str]]:
    step = "-" if run["step"] is None else f"{run['step']} of {run['max_steps']}"
    shown = [("state", run["state"]), ("step", step)]
    units = run["starts"][-1].get("units", {}) if run["starts"] else {}
    for name, split, key, form in (
        ("loss", "train", "loss", "{:.4f}"),
        ("validation", "validation", "loss", "{:.4f}"),
        ("tokens/s", "train", "tokens_per_s", "{:,.0f}"),
        ("MFU", "train", "mfu", "{:.1%}"),
    ):
        value = _newest(run, split, key)
        if value is not None:
            shown.append((name, f"{form.format(value)} {units.get(key, '')}".rstrip()))
    if run["goodput"] is not None:
        shown.append(("goodput", f"{run['goodput']:.1%}"))
    if run["slow"]:
        shown.append(("slow", run["slow"][0]))
    measures = run["curves"].get("validation", {}).keys() - {"loss", *AXES}
    for name in sorted(name for name in measures if not name.startswith("loss/")):
        if (value := _newest(run, "validation", name)) is not None:
            shown.append((name, f"{value:.4f} {units.get(name, '')}".rstrip()))
    return shown


def _line(run: dict[str, Any]) -> str:
    values = "  ".join(f"{name} {value}" for name, value in _values(run))
    return escape_control_characters(f"{run['name']}  {values}  {curve(_losses(run))}".rstrip())


def _losses(run: dict[str, Any]) -> list[float]:
    found = run["curves"].get("train", {}).get("loss", [])
    return [value for value in found if value is not None]


def curve(values: list[float], width: int = CURVE_WIDTH) -> str:
    """Return a curve of one line: each of its places the mean of a stretch of values."""
    if not values:
        return ""
    size = max(1, math.ceil(len(values) / width))
    parts = [values[start : start + size] for start in range(0, len(values), size)]
    means = [sum(part) / len(part) for part in parts]
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0
    return "".join(_BARS[round((mean - low) * scale)] for mean in means)


def _show(directories: tuple[str, ...], *, trust_code: bool) -> None:
    """Draw the runs again and again until Ctrl-C."""
    from rich.live import Live
    from rich.text import Text

    with Live(refresh_per_second=4, screen=False) as live:
        while True:
            found = _look(directories, trust_code=trust_code)
            live.update(Text("\n").join(_block(run) for run in found))
            if all(run["state"] != "running" for run in found):
                return
            time.sleep(SECONDS)


def _block(run: dict[str, Any]) -> Any:
    from rich.text import Text

    block = Text(escape_control_characters(run["name"]), style="bold")
    for name, value in _values(run):
        block.append(f"   {name} ", style="dim").append(value, style="not bold")
    if run["step"] and run["max_steps"]:
        done = min(CURVE_WIDTH, round(CURVE_WIDTH * run["step"] / run["max_steps"]))
        block.append("\n  " + "━" * done, style="green not bold")
        block.append("━" * (CURVE_WIDTH - done), style="dim")
    block.append(f"\n  {curve(_losses(run))}\n", style="cyan not bold")
    return block.append(_sample(run), style="dim not bold")


def _sample(run: dict[str, Any]) -> str:
    """Return the beginning of the newest text that was sampled; empty where none was."""
    if not run["samples"]:
        return ""
    newest = run["samples"][-1]
    text = " ".join(f"{newest['prompt']}{newest['text']}".split())[:SAMPLE_WIDTH]
    return f"  step {newest['step']}: {escape_control_characters(text)}\n"


def _serve(directories: tuple[str, ...], host: str, port: int, *, trust_code: bool) -> None:
    """Serve the page of the runs until Ctrl-C."""
    _look(directories, trust_code=trust_code)
    handler = type("_Page", (_Page,), {"look": lambda _: _look(directories, trust_code=trust_code)})
    try:
        server = ThreadingHTTPServer((host, port), handler)
    except OSError as error:
        raise ConfigError(
            f"no page can be shown at {host}:{port}: {error}",
            hint="name another --port; 0 takes any that is free",
        ) from error
    with server:
        click.echo(f"http://{host}:{server.server_port}   Ctrl-C ends it")
        server.serve_forever()


class _Page(BaseHTTPRequestHandler):
    """The page at `/`, and what it asks for at `/facts.json`."""

    def look(self) -> list[dict[str, Any]]:
        """Return what is known of the runs."""
        raise NotImplementedError

    def do_GET(self) -> None:
        """Answer a browser."""
        from axcore.report.page import run_page_html

        written = time.strftime("%H:%M:%S")
        if self.path == "/":
            self._answer("text/html", run_page_html(self.look(), written=written, is_live=True))
        elif self.path == "/facts.json":
            facts = {"runs": self.look(), "written": written, "is_live": True}
            self._answer("application/json", json.dumps(facts, allow_nan=False))
        else:
            self.send_error(404)

    def _answer(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""
