"""Our kernels for NVIDIA GPUs against the libraries' on the GPU at hand.

    python benchmarks/gpu_kernels.py SUBJECT                  # attention_causal, for example
    python benchmarks/gpu_kernels.py SUBJECT --quick          # its smallest case
    python benchmarks/gpu_kernels.py SUBJECT --dry-run        # traces all of them, anywhere
    python benchmarks/gpu_kernels.py SUBJECT --compile-for gpu-h100-1    # and compiles them

writes `results/gpu_CHIP_SUBJECT.json` after each contest: time, speed and temporaries of each
rival, or why it failed. One that breaks the device costs no other: the process starts again then.
Where JAX sees no GPU it says so, and writes nothing. Compiled elsewhere, with the compilers of
`axl-gpu[aot]` and JAX_PLATFORMS=cpu, temporaries go to `results/gpu_SUBJECT_compiled.json`.

Goals: attention within cuDNN's time where rows are whole, and two thirds of it with documents.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator

import _gpu_attention
import _gpu_products
import jax
from _gpu import Contest, device_answers, recorded, results_name
from _record import record

SUBJECTS: dict[str, Callable[[bool], Iterator[Contest]]] = {
    "ceilings": _gpu_products.ceilings,
    "attention_causal": _gpu_attention.causal,
    "attention_packed": _gpu_attention.packed,
    "attention_ragged": _gpu_attention.ragged,
    "decode": _gpu_attention.decode,
    "grouped": _gpu_products.grouped,
    "loss": _gpu_products.loss,
    "norm": _gpu_products.norm,
    "float8": _gpu_products.float8,
}
"""By name, what yields the contests of one subject."""


def measure(subject: str, is_quick: bool, skip: int) -> None:
    """Run the contests of a subject but for the first, and record each when it is over."""
    gpu = jax.devices()[0].device_kind
    name = results_name(subject, gpu)
    for place, contest in enumerate(SUBJECTS[subject](is_quick)):
        if place < skip:
            continue
        figures = recorded(name, gpu=gpu)
        found = contest.compete()
        figures.setdefault("contests", {})[contest.name] = found
        record(name, figures)
        print(contest.name, found["ours_over_best_rival"], found["rivals"], flush=True)
        if not device_answers():
            again = [*sys.argv, f"--skip={place + 1}"]
            os.execv(sys.executable, [sys.executable, *again])


def compile_for(subject: str, target: str) -> None:
    """Record the temporaries of a subject's rivals, compiled for a target."""
    from axl_gpu.compiler import devices

    from axcore.plugins import Hardware

    device = devices(Hardware.parse(target))[0]
    figures = {contest.name: contest.compile_for(device) for contest in SUBJECTS[subject](False)}
    print(record(f"gpu_{subject}_compiled", {"target": target, "contests": figures}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subject", choices=SUBJECTS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--dry-run", action="store_true", help="measure nothing, trace all")
    parser.add_argument("--compile-for", metavar="TARGET", help="measure nothing, compile all")
    parser.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compile_for:
        compile_for(options.subject, options.compile_for)
        return 0
    if options.dry_run:
        contests = list(SUBJECTS[options.subject](True))
        for contest in contests:
            contest.trace()
        print(f"{len(contests)} contests can start")
        return 0
    if jax.default_backend() != "gpu":
        found = jax.devices()[0].device_kind
        print(f"nothing was measured: JAX sees no GPU here, only {found!r}", file=sys.stderr)
        return 1
    measure(options.subject, options.quick, options.skip)
    return 0


if __name__ == "__main__":
    sys.exit(main())
