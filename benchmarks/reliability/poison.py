"""R9: what isn't finite changes nothing, and a spike is rolled back and its data skipped.

    python benchmarks/reliability/poison.py --tries 100

Each try trains a toy model for 24 steps and injects one fault at a random step: a batch whose loss
is infinite, a parameter that is nan, or a batch of tokens that follow no rule. The run must get to
its end by itself with finite parameters, and every checkpoint that it leaves must be finite.

Its default form takes about 30 minutes on two cores.
"""

import argparse
import copy
import random
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import _paths  # noqa: F401 - the tests' modules
import jax
import jax.numpy as jnp
import numpy as np
from _result import record_promise
from texts import write_text
from training_worker import config_of

from axcore.config import config, evolve, update_config
from axcore.trainer import Guard, SpikeRollback
from axcore.trainer.callbacks.events import RolledBack

KINDS = ("infinite batch", "nan parameter", "spoiled batch")


class Injects(Guard):
    """Injects one fault into the first history of a run."""

    @config
    class Config(Guard.Config):
        kind: str = ""
        at: int = 12

    def on_start(self, trainer: Any, directory: Path) -> None:
        self.is_armed = True

    def on_batch(self, step: int, batch: Any) -> Any:
        if not self._is_due(step, KINDS[0], KINDS[2]):
            return batch
        if self.config.kind == KINDS[0]:
            return {**batch, "loss_weights": np.full_like(batch["loss_weights"], np.inf)}
        targets = np.random.default_rng(step).integers(3, 264, batch["targets"].shape, np.int32)
        return {**batch, "targets": targets}

    def on_state(self, step: int, state: Any) -> Any:
        if not self._is_due(step, KINDS[1]):
            return state
        leaves, tree = jax.tree.flatten(state.model)
        leaves[0] = leaves[0].at[(0,) * leaves[0].ndim].set(jnp.nan)
        return state._replace(model=jax.tree.unflatten(tree, leaves))

    def _is_due(self, step: int, *kinds: str) -> bool:
        is_due = self.is_armed and step == self.config.at and self.config.kind in kinds
        self.is_armed &= not is_due
        return is_due


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=100)
    options = parser.parse_args()
    began = time.monotonic()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as scratch:
        good, rollbacks = run_all(Path(scratch), options.tries)
    text = f"{good} of {options.tries} runs ended finite; rollbacks by kind: {rollbacks}"
    seconds = time.monotonic() - began
    print(text, record_promise("R9", tries=options.tries, outcome=text, seconds=seconds))
    sys.exit(good != options.tries)


def run_all(scratch: Path, tries: int) -> tuple[int, dict[str, int]]:
    text = scratch / "text"
    write_text(text)
    changes = {"max_steps": 24, "eval_every_steps": 24, "rollback.max_skipped_in_a_row": 2}
    trainer = update_config(config_of(str(text)), changes).build()
    good, rollbacks = 0, dict.fromkeys(KINDS, 0)
    for index in range(tries):
        kind = KINDS[index % len(KINDS)]
        is_good, backs = one_try(trainer, kind, scratch / f"run{index}")
        good += is_good
        rollbacks[kind] += backs
        print(f"{index + 1}: {kind}: {'good' if is_good else 'BAD'}, {backs} rollbacks", flush=True)
    return good, rollbacks


def one_try(trainer: Any, kind: str, directory: Path) -> tuple[bool, int]:
    """Return whether a run with one fault ended well, and how often it went back."""
    guards = (
        Injects.Config(kind=kind, at=random.randint(10, 20)),
        SpikeRollback.Config(window=6, sigmas=6.0, steps=2),
    )
    one = copy.copy(trainer)
    one.config = evolve(trainer.config, guards=guards)
    backs: list[RolledBack] = []
    keep = lambda event: backs.append(event) if isinstance(event, RolledBack) else None  # noqa: E731
    result = one.run(directory, [keep], quiet=True)
    is_expected = bool(backs) or kind == KINDS[0]  # an infinite batch is skipped in its place
    return result.is_complete and is_finite(result.state) and is_expected, len(backs)


def is_finite(state: Any) -> bool:
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(state.model))


if __name__ == "__main__":
    main()
