"""Completions to read, kept in the run directory: the best, the worst, and how they change."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from axcore.config import NonNegativeInt, PositiveInt, Resumable, config
from axcore.data import decoded
from axcore.rollouts.rollouts import Rollouts
from axcore.runs.text_samples import SAMPLES_NAME
from axcore.trainer import Guard
from axcore.trainer.run_directory.json_lines import append_json_line


class RolloutSamples(Guard):
    """Writes completions to read, which `axcore report` shows.

    They are the best and the worst of some batches, and at each evaluation those of the same few
    prompts, which are never trained on: so one sees what has changed since the first.
    """

    @config
    class Config(Guard.Config):
        """The config of `RolloutSamples`.

        Args:
            every_steps: Steps between batches that are looked at.
            num_held_out: Prompts whose completions are kept at each evaluation.
        """

        every_steps: Resumable[PositiveInt] = 100
        num_held_out: Resumable[NonNegativeInt] = 2

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

    def on_evaluation(self, step: int, state: Any) -> None:
        """Write completions of the evaluation."""
        if self._data is None:
            return
        for one in self._data.evaluated[: self.config.num_held_out]:
            line = self._line(step, f"held out: {self._text(one.prompt)}", one.tokens)
            # No number where the reward failed: JSON has none for it.
            known = {"reward": one.reward} if np.isfinite(one.reward) else {}
            append_json_line(self._path, {**line, **known})

    def _sample(self, step: int, name: str, batch: Any, row: int) -> dict[str, Any]:
        sampled = np.flatnonzero(batch["loss_weights"][row])
        prompt = batch["tokens"][row][: sampled[0] + 1].tolist() if len(sampled) else []
        reward = float(batch["rewards"][row])
        shown = f"{name} of the step, reward {reward:.3g}: {self._text(prompt)}"
        return self._line(step, shown, batch["targets"][row][sampled].tolist())

    def _line(self, step: int, prompt: str, tokens: Sequence[int]) -> dict[str, Any]:
        assert self._data is not None
        return {
            "step": step,
            "prompt": prompt,
            "text": self._text(tokens),
            "num_tokens": len(tokens),
            "is_ended": bool(tokens) and tokens[-1] in self._data.tokenizer.end_ids,
        }

    def _text(self, tokens: Sequence[int]) -> str:
        assert self._data is not None
        return decoded(self._data.tokenizer, tokens)
