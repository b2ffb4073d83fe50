"""Completions to read: the best and the worst of a batch, kept in the run directory."""

from pathlib import Path
from typing import Any

import numpy as np

from axcore.config import PositiveInt, Resumable, config
from axcore.data import decoded
from axcore.rollouts.rollouts import Rollouts
from axcore.runs.text_samples import SAMPLES_NAME
from axcore.trainer import Guard
from axcore.trainer.run_directory.json_lines import append_json_line


class RolloutSamples(Guard):
    """Writes the best and the worst completion of some batches, which `axcore report` shows."""

    @config
    class Config(Guard.Config):
        """The config of `RolloutSamples`.

        Args:
            every_steps: Steps between batches that are looked at.
        """

        every_steps: Resumable[PositiveInt] = 100

    config: Config

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self._path = Path()
        self._data: Rollouts | None = None

    def on_start(self, trainer: Any, directory: Path) -> None:
        """See what is trained and where."""
        self._path = directory / SAMPLES_NAME
        # On other data there are no completions, and nothing to write.
        self._data = trainer.data if isinstance(trainer.data, Rollouts) else None

    def on_batch(self, step: int, batch: Any) -> Any:
        """Write the two completions, and return the batch as it is."""
        if self._data is None or step % self.config.every_steps:
            return batch
        rows = np.flatnonzero(batch["row_weights"])
        if len(rows):
            rewards = batch["rewards"][rows]
            for name, row in (("best", rows[rewards.argmax()]), ("worst", rows[rewards.argmin()])):
                append_json_line(self._path, self._sample(step, name, batch, row))
        return batch

    def _sample(self, step: int, name: str, batch: Any, row: int) -> dict[str, Any]:
        assert self._data is not None
        tokenizer = self._data.tokenizer
        sampled = np.flatnonzero(batch["loss_weights"][row])
        tokens = batch["tokens"][row]
        completion = batch["targets"][row][sampled].tolist()
        prompt = decoded(tokenizer, tokens[: sampled[0] + 1].tolist() if len(sampled) else [])
        reward = float(batch["rewards"][row])
        return {
            "step": step,
            "prompt": f"{name} of the step, reward {reward:.3g}: {prompt}",
            "text": decoded(tokenizer, completion),
            "num_tokens": len(completion),
            "is_ended": bool(completion) and completion[-1] in tokenizer.end_ids,
        }
