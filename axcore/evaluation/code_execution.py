"""`CodeExecution`: programs that a model completes, run with tests."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from axcore.config import NonNegativeFloat, PositiveInt, config
from axcore.errors import ConfigError, DataError
from axcore.evaluation.questions import Continuation
from axcore.evaluation.sample import Sample
from axcore.evaluation.sandbox import ProgramLimits, run_program
from axcore.evaluation.scored_task import ScoredTask
from axcore.evaluation.template import fill


class CodeExecution(ScoredTask):
    """Measures `pass@k`: how likely one of k programs passes its tests.

    Programs run with limits; see `axcore.evaluation.sandbox` for what that protects against.
    """

    @config
    class Config(ScoredTask.Config):
        """Describes a `CodeExecution`.

        Args:
            program: What is run, with `{answer}` for what the model wrote.
            num_answers: Programs that are written for each sample.
            ks: Numbers of programs of which one has to pass.
            temperature: 0 takes the likeliest token; more than one answer needs more.
            max_tokens: Tokens of an answer at most.
            stop: Texts that end an answer.
            limits: What a program may use.
        """

        program: str = "{prompt}{answer}\n{test}\ncheck({entry_point})\n"
        num_answers: PositiveInt = 1
        ks: tuple[PositiveInt, ...] = (1,)
        temperature: NonNegativeFloat = 0.0
        max_tokens: PositiveInt = 256
        stop: tuple[str, ...] = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
        limits: ProgramLimits = ProgramLimits()

    config: Config

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        if max(cfg.ks) > cfg.num_answers:
            raise ConfigError(
                f"ks is {cfg.ks}, and num_answers {cfg.num_answers}; expected as many answers",
                where="ks",
                hint=f"set num_answers={max(cfg.ks)}",
            )

    def questions(self, sample: Sample, before: str) -> tuple[Continuation, ...]:
        """Asks for programs."""
        self._program(sample, "")
        return tuple(
            Continuation(
                prompt=before + self.text(sample),
                max_tokens=self.config.max_tokens,
                stop=self.config.stop,
                temperature=self.config.temperature,
                seed=seed,
            )
            for seed in range(self.config.num_answers)
        )

    def measures(self, sample: Sample, replies: Sequence[Any]) -> Mapping[str, float]:
        """Runs the programs, one after the other."""
        limits = self.config.limits
        ended = [run_program(self._program(sample, one.text), limits).status for one in replies]
        num, num_passed = len(ended), ended.count("passed")
        found = {f"pass@{k}": pass_at(k, num, num_passed) for k in self.config.ks}
        return {**found, "timeouts": ended.count("timeout") / num}

    def solution(self, sample: Sample) -> str:
        """Refuses: what a solved example would be is not known."""
        raise DataError("programs have no solved examples", where="num_shots", hint="set it to 0")

    def _program(self, sample: Sample, answer: str) -> str:
        fields = {**sample.fields, "answer": answer}
        return fill(self.config.program, attrs.evolve(sample, fields=fields))


def pass_at(k: int, num: int, num_passed: int) -> float:
    """Returns how likely one of `k` programs, drawn from `num`, is among those that passed.

    Source: Chen et al., 2021, arXiv:2107.03374, equation 1.
    """
    return 1 - math.comb(num - num_passed, k) / math.comb(num, k)
