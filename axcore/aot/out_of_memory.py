"""Explain running out of memory: what the step needs, where, and which settings need less.

RUN/memory.json   of the newest start: the parts, and the largest buffers with what makes them
"""

import json
import re
from pathlib import Path
from typing import Any

import attrs
import jax

from axcore.aot.cost.measure import NO_MEMORY
from axcore.aot.cost.memory import bytes_on_a_device, capacity_bytes, measured_memory
from axcore.aot.hlo.buffers import peak_of
from axcore.aot.hlo.program import ModuleNames, module_paths, parse_program
from axcore.aot.report.report import Memory, show_bytes
from axcore.errors import AxcoreError, TrainingError
from axcore.hardware.host_memory import host_bytes
from axcore.trainer.callbacks import Event, RunStarted, StepsDone
from axcore.whole_files import write_whole

_ASKED = re.compile(r"(?:allocating|allocate) ([\d.]+)\s?([KMGT]?i?B|bytes)")
_UNITS = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SHOWN_BUFFERS = 3
_AOT_HINT = "axcore aot EXPERIMENT --target NAME   reports what a step needs, without a device"
_LEAST_SHARE = 0.01
"""Of what the step needs; what saves less is not worth naming."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that a device or the host has no memory left."""
    if isinstance(error, MemoryError):
        return True
    text = str(error)
    is_device = isinstance(error, jax.errors.JaxRuntimeError)
    return is_device and (NO_MEMORY in text or "Out of memory" in text)


def explained(error: BaseException, trainer: Any = None) -> TrainingError:
    """Return an error that says what did not fit, and what would.

    Args:
        error: For which `is_out_of_memory` holds.
        trainer: Whose step it was; None where there is none yet.
    """
    amount = _amount(error)
    if isinstance(error, MemoryError):
        return TrainingError(
            _host_is_full(error),
            where=_modules_of(error),
            hint="batches and masks grow with data.batch_size and data.seq_len: lower them",
        )
    if trainer is None:
        return TrainingError(_device_is_full(error), hint=_AOT_HINT)
    memory = step_memory(trainer)
    needs = f"{show_bytes(memory.peak_bytes)} on {_device(trainer, memory.capacity_bytes)}"
    return _by_parts(f"a device's memory is full{amount}. The step needs {needs}:", memory, trainer)


def check_host_holds_state(trainer: Any) -> None:
    """Check, where devices are host processors, that the host can hold what they keep.

    It is asked before the first array is made: a kernel that runs out of memory ends processes
    without a word.

    Raises:
        TrainingError: It cannot.
    """
    devices = trainer.mesh.local_devices
    if devices[0].platform != "cpu":
        return
    memory = step_memory(trainer)
    needed = memory.peak_bytes * len(devices)
    if needed > host_bytes():
        raise _by_parts(
            f"the state alone needs {show_bytes(needed)} of the host's memory, which has "
            f"{show_bytes(host_bytes())}; each device of {trainer.hardware.name} would hold:",
            memory,
            trainer,
        )


def _by_parts(opening: str, memory: Memory, trainer: Any) -> TrainingError:
    what = [
        opening,
        *(f"  {name:<32}{show_bytes(size):>10}" for name, size in _parts(memory) if size),
    ]
    largest = [
        f"{one.size_text} {one.shape} of {one.module}" for one in memory.largest[:_SHOWN_BUFFERS]
    ]
    return TrainingError(
        "\n".join(what),
        where="; ".join(largest) or None,
        hint="\n".join(_settings(memory, trainer)),
    )


def explained_outside_training(error: BaseException) -> AxcoreError:
    """Return an error that says what did not fit while a command did something else than train.

    Args:
        error: For which `is_out_of_memory` holds.
    """
    is_host = isinstance(error, MemoryError)
    return AxcoreError(
        _host_is_full(error) if is_host else _device_is_full(error),
        where=_modules_of(error),
        hint="a smaller model, weights in fewer bits, fewer or shorter texts at once, or more "
        f"devices need less\n{_AOT_HINT} (--serve: of a model that answers)",
    )


def _host_is_full(error: BaseException) -> str:
    has = f"it has {show_bytes(host_bytes())}"
    return f"the host's memory is full{_amount(error)}; {has}\n{error}".rstrip()


def _device_is_full(error: BaseException) -> str:
    """Name the host's memory too: that of host processors is the host's."""
    full = f"a device's memory is full{_amount(error)}; the host has {show_bytes(host_bytes())}"
    return f"{full}\n{str(error).splitlines()[0]}"


def _modules_of(error: BaseException) -> str | None:
    notes = [note for note in getattr(error, "__notes__", []) if note.startswith("in module")]
    return "; ".join(notes) or None


def _amount(error: BaseException) -> str:
    asked = _asked(str(error))
    return f": {show_bytes(asked)} at once" if asked else ""


def step_memory(trainer: Any) -> Memory:
    """Return what a step needs: of the compiled program, or of its state where none was made."""
    compiler = trainer.compiler
    state = compiler.abstract_state()
    if "compiled_step" in vars(compiler):
        compiled = compiler.compiled_step
        names = ModuleNames(module_paths(trainer.model))
        program = parse_program(compiled.as_text())
        return measured_memory(compiled.memory_analysis(), trainer, peak_of(program), names)
    parameters, optimizer = bytes_on_a_device(state.model), bytes_on_a_device(state.opt_state)
    return Memory(
        capacity_bytes=capacity_bytes(trainer.hardware),
        peak_bytes=parameters + optimizer,
        parameters_bytes=parameters,
        optimizer_bytes=optimizer,
        batch_bytes=0,
        temporaries_bytes=0,
    )


def _parts(memory: Memory) -> list[tuple[str, int]]:
    return [
        ("parameters", memory.parameters_bytes),
        ("optimizer state", memory.optimizer_bytes),
        ("batch and counters", memory.batch_bytes),
        ("temporaries", memory.temporaries_bytes),
        ("  kept for the backward pass", memory.activations_bytes),
    ]


def _device(trainer: Any, capacity: int | None) -> str:
    name = trainer.hardware.name
    if capacity is not None:
        return f"each device of {name}, which has {show_bytes(capacity)}"
    return f"each device of {name}; the host has {show_bytes(host_bytes())}"


def _settings(memory: Memory, trainer: Any) -> list[str]:
    """Return what needs less, what saves most first. Sizes are estimates of this step's parts."""
    kept, state = memory.activations_bytes, memory.parameters_bytes + memory.optimizer_bytes
    is_host = trainer.mesh.local_devices[0].platform == "cpu"  # whose devices share one memory
    holders = "hosts" if is_host else "devices"
    parts = 2 * trainer.config.num_micro_batches
    found = [
        (kept, '--modify "remat(policy=full)": the backward pass computes most of it again'),
        (kept // 2, f"--set num_micro_batches={parts}: the same batch in more parts"),
        (memory.optimizer_bytes // 2, "--modify low_precision_optimizer: its state in 16 bits"),
        (state // 2, f"twice the {holders}, of which each has half of what fsdp splits"),
    ]
    helps = [one for one in found if one[0] > memory.peak_bytes * _LEAST_SHARE]
    ranked = sorted(helps, key=lambda one: -one[0])
    lines = [f"about {show_bytes(saved)} less a device by {setting}" for saved, setting in ranked]
    return [*lines, _AOT_HINT]


def _asked(text: str) -> int | None:
    found = _ASKED.search(text)
    return int(float(found[1]) * _UNITS.get(found[2], 1)) if found else None


MEMORY_NAME = "memory.json"


class StepMemoryRecorder:
    """An observer that reads the compiled step once, after the first line of metrics.

    Args:
        trainer: Whose step it is.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._directory: Path | None = None

    def __call__(self, event: Event) -> None:
        """Write the file where the first steps are done."""
        match event:
            case RunStarted():
                self._directory = Path(event.directory)
            case StepsDone() if self._directory is not None:
                path, self._directory = self._directory / MEMORY_NAME, None
                memory = attrs.asdict(step_memory(self._trainer))
                write_whole(path, (json.dumps(memory) + "\n").encode())
            case _:
                pass
