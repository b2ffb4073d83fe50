"""How fast models are served on a CPU, compared with llama.cpp and transformers.

    python benchmarks/serving.py --gguf-python VENV/bin/python --torch-python VENV/bin/python \
        [--rounds 7] [--without-load]

Models of 32 and 125 million random float32 parameters, the same numbers in all. Time per token is
that of each token after the first, after a prompt of 128 tokens, for one row and for eight; time to
first token has a prompt of 512. Likeliest tokens are sampled, which are compared. Then 32 requests
with Poisson arrivals and lengths as in ShareGPT come to the small model, and the engine's own time
on the host is taken at 64 slots.

Every rival is a process of its own with as many threads as there are cores, set up as its authors
have it; how is in the results. All take turns, the first turn is not counted, and a figure is the
median over turns; a ratio is the median over turns of axcore's time by the rival's. Two are
measured in several ways, of which the faster counts: axcore with all cores as one device, which is
the default, also with keys and values in float16 (`axcore_half`), as llama.cpp keeps them by
default, and with a device for each core (`axcore_split`); transformers with its default cache, and
the smaller model compiled with a static cache. A rival that fails or hangs is left out of what
follows, its last words are printed, and the results are written after each turn. The table of
docs/performance.md is written last.

`--device cuda` measures axcore and transformers on a GPU instead, for
`results/gpu_CHIP_serving.json`.

`--gguf-python` is the Python of an environment of `llama-cpp-python`, as `make parity-gguf` makes
it, but compiled for this processor: without `-DGGML_NATIVE=OFF`. `--torch-python` is that of
`make parity`.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from _record import record
from _serving_load import MODELS
from _serving_rival import HERE, Rival
from serving_page import OURS, RESULTS, table, write_page

ROWS = (1, 8)
TASKS: dict[str, dict[str, Any]] = {
    **{f"decode_{rows}": {"task": "decode", "batch": rows} for rows in ROWS},
    "first": {"task": "first"},
}
LOADS = (
    ("axcore", "host", 90.0),
    ("axcore", "together", 150.0),
    ("axcore_half", "together", 150.0),
    ("axcore_split", "together", 150.0),
    ("axcore", "one_by_one", 120.0),
    ("transformers", "one_by_one", 120.0),
    ("transformers", "together", 200.0),
)
"""Who serves the load, how, and for how many seconds at most."""

HOST_TOKENS = 256
"""Of each slot, while the engine's own time is taken."""

Figures = dict[str, Any]


def start(given: argparse.Namespace, model: str, folder: Path) -> dict[str, Rival]:
    """Return the processes that serve a model, by name."""
    threads = str(os.cpu_count())
    ours = os.environ.get("PYTHONPATH", "")
    command = (sys.executable, "_serving_axcore.py", str(folder / model))
    wanted: dict[str, Callable[[], Rival]] = {"axcore": lambda: Rival(*command, paths=ours)}
    if given.device == "cpu":
        wanted["axcore_half"] = lambda: Rival(*command, "--half", paths=ours)
        wanted["axcore_split"] = lambda: Rival(*command, f"--split={threads}", paths=ours)
    if given.gguf_python is not None:
        file = str(folder / f"{model}.gguf")
        wanted["llama.cpp"] = lambda: Rival(given.gguf_python, "_serving_llama.py", file, threads)
    if given.torch_python is not None:
        on = () if given.device == "cpu" else (f"--device={given.device}",)
        torch = (
            given.torch_python,
            "_serving_transformers.py",
            str(folder / model),
            threads,
            *on,
        )
        wanted["transformers"] = lambda: Rival(*torch)
        if model == given.models[0]:  # it takes minutes
            wanted["transformers_compiled"] = lambda: Rival(*torch, "--compile")
    rivals = {}
    for name, make in wanted.items():
        began = time.monotonic()
        rivals[name] = make()
        print(f"  {name} of {model}: {time.monotonic() - began:.0f} s to start", flush=True)
    return rivals


def measure(rivals: dict[str, Rival], rounds: int, count: int) -> Iterator[Figures]:
    """Yield what each task took of each rival so far, after every turn but its first."""
    found: Figures = {}
    for task, asked in TASKS.items():
        more = {"count": count} if asked["task"] == "decode" else {}
        turns: list[Figures] = []
        for turn in range(rounds + 1):
            began = time.monotonic()
            one = {
                name: rival.ask(seed=turn, **asked, **more) for name, rival in _turned(rivals, turn)
            }
            print(f"  {task}, turn {turn}: {time.monotonic() - began:.0f} s", flush=True)
            if turn > 0:
                turns.append(one)
                found[task] = {name: _summary(turns, name) for name in rivals if _all(turns, name)}
                yield found


def _turned(rivals: dict[str, Rival], turn: int) -> Iterable[tuple[str, Rival]]:
    names = list(rivals)
    place = turn % len(names)
    return [(name, rivals[name]) for name in names[place:] + names[:place]]


def _all(turns: list[Figures], name: str) -> bool:
    return all(turn[name] is not None for turn in turns)


def _summary(turns: list[Figures], name: str) -> Figures:
    """Return the median and the best of a rival, and axcore's by it in both ways."""
    times = [turn[name]["ms"] for turn in turns]
    summary = {
        "ms": round(statistics.median(times), 3),
        "fastest_ms": round(min(times), 3),
        "processor_ms": round(statistics.median(turn[name]["processor_ms"] for turn in turns), 3),
        "peak_mib": turns[-1][name]["peak_mib"],
    }
    for way in OURS:
        if name not in OURS and way in turns[0] and _all(turns, way):
            of = [turn[way]["ms"] / turn[name]["ms"] for turn in turns]
            summary[f"{way}_by_it"] = round(statistics.median(of), 3)
    if name != "axcore" and _all(turns, "axcore"):
        summary["same_tokens"] = round(
            statistics.mean(_shared(turn["axcore"], turn[name]) for turn in turns), 2
        )
    return summary


def _shared(ours: Figures, theirs: Figures) -> float:
    """Return the share of tokens before the first that differs."""
    pairs = list(zip(ours["tokens"], theirs["tokens"], strict=False))
    same = next((at for at, pair in enumerate(pairs) if pair[0] != pair[1]), len(pairs))
    return same / len(pairs)


def results_name(figures: Figures) -> str:
    """Return the name of the file that the figures are kept in: on a GPU, that of the card."""
    if "device" not in figures:
        return "serving"
    from _gpu import results_name as name_by_card

    ours = figures["rivals"]["axcore"]
    if "failure" in ours:
        sys.exit(f"nothing is kept, since axcore did not start: {ours['failure']}")
    return name_by_card("serving", ours["setting"]["device_kind"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf-python", type=Path, help="the Python of one of llama-cpp-python")
    parser.add_argument("--torch-python", type=Path, help="the Python of one of transformers")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=32, help="of a turn")
    parser.add_argument("--requests", type=int, default=32, help="of the load")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--without-load", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dry-run", action="store_true", help="measure nothing, import axcore's")
    given = parser.parse_args()
    if given.dry_run:
        import _serving_axcore

        print(f"{_serving_axcore.SETTINGS.max_num_seqs} rows can be served")
        return
    figures: Figures = {"rivals": {}, "models": {}, "load": {}}
    if given.device != "cpu":
        figures["device"] = given.device
        os.environ["JAX_PLATFORMS"] = given.device
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # several rivals share the card
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as kept:
        folder = Path(kept)
        for model in given.models:
            run_model(given, model, folder, figures)
            print(f"{model}: {time.monotonic() - began:.0f} s since the start", flush=True)
    path = record(results_name(figures), figures)
    print(table(figures))
    if path == RESULTS:
        write_page()
    print("written to", path, f"after {time.monotonic() - began:.0f} s")


def run_model(given: argparse.Namespace, model: str, folder: Path, figures: Figures) -> None:
    """Measure a model, and the load where it is the first."""
    writer = [sys.executable, str(HERE / "_serving_models.py"), model, str(folder)]
    kept = {**os.environ, "JAX_PLATFORMS": "cpu"}
    num_params = int(subprocess.check_output(writer, text=True, env=kept))
    rivals = start(given, model, folder)
    for name, rival in rivals.items():
        figures["rivals"][name] = rival.start or {"failure": rival.failure}
    try:
        for found in measure(rivals, given.rounds, given.tokens):
            figures["models"][model] = {"num_params": num_params, **found}
            record(results_name(figures), figures)
        if model == given.models[0] and not given.without_load:
            for name, task, limit_s in LOADS:
                run_load(rivals, name, task, limit_s, given.requests, figures)
    finally:
        for name, rival in rivals.items():
            if rival.failure is not None:
                figures["models"].setdefault(model, {})[f"{name}_failure"] = rival.failure
            rival.stop()


def run_load(
    rivals: dict[str, Rival], name: str, task: str, limit_s: float, count: int, figures: Figures
) -> None:
    """Let one rival serve the load."""
    if name in rivals:
        size = HOST_TOKENS if task == "host" else count
        found = rivals[name].ask(task, limit_s=limit_s, count=size)
        print(f"load: {name} {task}: {found}", flush=True)
        if found is not None:
            figures["load"][f"{name}_{task}"] = {
                what: round(value, 3) for what, value in found.items()
            }
    record(results_name(figures), figures)


if __name__ == "__main__":
    main()
