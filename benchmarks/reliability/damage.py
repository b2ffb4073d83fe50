"""R2: any damage of a checkpoint is noticed, and the newest intact step restored.

    python benchmarks/reliability/damage.py [TRIES]

Each try copies a run of two steps, damages the newer one on the disk, and restores. The damage is
noticed where a warning names the step and the older one comes back bit by bit. In every fifth try
the run is taken up again: the damaged step must be kept aside as it is, and none be lost.

Its default form takes about 8 minutes on two cores.
"""

import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax.numpy as jnp
import numpy as np
from _result import record_promise

from axcore.checkpoint import Checkpointer, CheckpointWarning

OLD, NEW = 100, 200
Damage = Callable[[random.Random, Path], None]


def state_of(step: int) -> dict[str, object]:
    draw = np.random.default_rng(step)
    w = draw.standard_normal((64, 64), dtype=np.float32)
    return {"w": jnp.asarray(w), "b": jnp.full((64,), step, jnp.bfloat16), "n": jnp.int32(step)}


def files_of(step: Path) -> list[Path]:
    return sorted(path for path in step.rglob("*") if path.is_file() and path.stat().st_size)


def one_file(draw: random.Random, step: Path) -> Path:
    """Return any file; every other time the largest, which holds the arrays."""
    files = files_of(step)
    return draw.choice([draw.choice(files), max(files, key=lambda file: file.stat().st_size)])


def overwrite(path: Path, start: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)


def flip_bit(draw: random.Random, step: Path) -> None:
    path = one_file(draw, step)
    place = draw.randrange(path.stat().st_size)
    overwrite(path, place, bytes([path.read_bytes()[place] ^ 1 << draw.randrange(8)]))


def cut(draw: random.Random, step: Path) -> None:
    path = one_file(draw, step)
    os.truncate(path, draw.randrange(path.stat().st_size))


def empty(draw: random.Random, step: Path) -> None:
    os.truncate(one_file(draw, step), 0)


def lengthen(draw: random.Random, step: Path) -> None:
    with one_file(draw, step).open("ab") as file:
        file.write(draw.randbytes(draw.randint(1, 4096)))


def lose_file(draw: random.Random, step: Path) -> None:
    one_file(draw, step).unlink()


def lose_directory(draw: random.Random, step: Path) -> None:
    folders = {file.parent for file in files_of(step)} - {step}
    shutil.rmtree(draw.choice(sorted(folders)))


def zero_block(draw: random.Random, step: Path) -> None:
    path = one_file(draw, step)
    size = path.stat().st_size
    start = draw.randrange(size)
    overwrite(path, start, bytes(min(512, size - start)))


def duplicate_block(draw: random.Random, step: Path) -> None:
    path = one_file(draw, step)
    data = path.read_bytes()
    length = max(1, min(512, len(data) // 2))
    a, b = (draw.randrange(len(data) - length + 1) for _ in range(2))
    overwrite(path, a, data[b : b + length])


def swap_files(draw: random.Random, step: Path) -> None:
    a, b = draw.sample(files_of(step), 2)
    swap(a, b)


def swap_with_older_step(draw: random.Random, step: Path) -> None:
    """A file comes back as it was a step ago: a stale replica."""
    older = step.with_name(f"step_{OLD:08d}")
    path = draw.choice([step / "manifest.json", *files_of(step)])
    candidates = files_of(older)
    same_name = older / path.relative_to(step)
    shutil.copyfile(same_name if same_name.exists() else draw.choice(candidates), path)


def older_step_in_its_place(draw: random.Random, step: Path) -> None:
    """The full directory is that of another step."""
    shutil.rmtree(step)
    shutil.copytree(step.with_name(f"step_{OLD:08d}"), step)


def swap(a: Path, b: Path) -> None:
    held = a.with_name("held")
    a.rename(held)
    b.rename(a)
    held.rename(b)


KINDS: dict[str, Damage] = {
    act.__name__: act
    for act in (
        flip_bit, flip_bit, cut, empty, lengthen, lose_file, lose_directory, zero_block,
        duplicate_block, swap_files, swap_with_older_step, older_step_in_its_place,
    )
}  # fmt: skip
WEIGHTS = {"flip_bit": 6, "older_step_in_its_place": 0.2}


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in files_of(directory)}


def spoil(draw: random.Random, step: Path) -> str:
    """Damages a step, and returns how."""
    before = content(step)
    while content(step) == before:
        kind = draw.choices(list(KINDS), [WEIGHTS.get(name, 1) for name in KINDS])[0]
        KINDS[kind](draw, step)
    return kind


def is_noticed(run: Path) -> bool:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        restored = Checkpointer.Config().build(directory=str(run)).restore(state_of(0))
    wanted = state_of(OLD)
    told = [str(one.message) for one in caught if one.category is CheckpointWarning]
    return (
        len(told) == 1
        and f"step {NEW} is damaged" in told[0]
        and restored.step == OLD
        and restored.extra == {"step": OLD}
        and all(np.array_equal(restored.state[name], wanted[name]) for name in wanted)
    )


def is_quarantined(run: Path) -> bool:
    damaged = content(run / f"step_{NEW:08d}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Checkpointer.Config(keep=2).build(directory=str(run)) as checkpoints:
            checkpoints.restore(state_of(0))
            checkpoints.save(NEW + 1, state_of(NEW + 1))
    for step in (OLD, NEW + 1):
        checkpoints.verify(step)
    aside = content(run / f"step_{NEW:08d}.quarantined")
    return checkpoints.steps() == (OLD, NEW + 1) and aside == damaged


def main() -> None:
    tries = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    draw = random.Random(0)
    kinds: Counter[str] = Counter()
    silent: list[str] = []
    lost: list[str] = []
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        pristine, run = Path(folder, "pristine"), Path(folder, "run")
        with Checkpointer.Config().build(directory=str(pristine)) as checkpoints:
            for step in (OLD, NEW):
                checkpoints.save(step, state_of(step), {"step": step})
        for number in range(tries):
            shutil.copytree(pristine, run)
            kind = spoil(draw, run / f"step_{NEW:08d}")
            kinds[kind] += 1
            if not is_noticed(run):
                silent.append(kind)
            elif number % 5 == 0 and not is_quarantined(run):
                lost.append(kind)
            shutil.rmtree(run)
    outcome = f"{tries - len(silent)} of {tries} noticed, {len(silent)} silent; "
    outcome += f"{len(lost)} of {(tries + 4) // 5} damaged steps not kept aside"
    print(outcome, dict(kinds), Counter(silent), Counter(lost))
    more = {"kinds": dict(kinds), "silent": silent, "not_kept_aside": lost}
    seconds = time.perf_counter() - started
    print("written to", record_promise("R2", tries=tries, outcome=outcome, seconds=seconds, **more))
    sys.exit(bool(silent or lost))


if __name__ == "__main__":
    main()
