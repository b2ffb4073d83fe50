"""`CodeExecution`: programs that a model completes, run with tests."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from axcore.config import NonNegativeFloat, PositiveInt, config
from axcore.errors import ConfigError, DataError
from axcore.evaluation.questions import Continuation
from axcore.evaluation.sample import Sample
from axcore.evaluation.scored_task import ScoredTask
from axcore.evaluation.template import fill
from axcore.sandbox import ProgramLimits, choose_mechanism, run_program


class CodeExecution(ScoredTask):
    """Measures `pass@k`: how likely one of k programs passes its tests.

    Programs run in a sandbox, and their checks in another; see `axcore.sandbox`.
    """

    @config
    class Config(ScoredTask.Config):
        """Describes a `CodeExecution`.

        Args:
            program: What is run, with `{answer}` for what the model wrote.
            checks: Python that calls the program's functions, as `program.NAME` or by names that it
                does not define itself, and raises an exception where one is wrong. It runs in
                another process, so nothing of `program` is defined here.
            num_answers: Programs that are written for each sample.
            ks: Numbers of programs of which one has to pass.
            temperature: 0 takes the likeliest token; more than one answer needs more.
            max_tokens: Tokens of an answer at most.
            stop: Texts that end an answer.
            limits: What a program may use.
            allow_unsandboxed_code: Whether programs run also where this machine cannot confine
                them; they can then do whatever this user can.
        """

        program: str = "{prompt}{answer}\n"
        # With the prompt, since some checks use functions of it, which the program could replace.
        checks: str = (
            "{prompt}\n{entry_point} = program.{entry_point}\n{test}\ncheck({entry_point})\n"
        )
        num_answers: PositiveInt = 1
        ks: tuple[PositiveInt, ...] = (1,)
        temperature: NonNegativeFloat = 0.0
        max_tokens: PositiveInt = 256
        stop: tuple[str, ...] = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
        limits: ProgramLimits = ProgramLimits()
        allow_unsandboxed_code: bool = False

    config: Config

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        if max(cfg.ks) > cfg.num_answers:
            raise ConfigError(
                f"ks is {cfg.ks}, and num_answers {cfg.num_answers}; expected as many answers",
                where="ks",
                hint=f"set num_answers={max(cfg.ks)}",
            )
        # Here, so that a machine without a sandbox is noticed before a model is loaded.
        self._mechanism = choose_mechanism(allow_unsandboxed=cfg.allow_unsandboxed_code)

    def questions(self, sample: Sample, before: str) -> tuple[Continuation, ...]:
        """Asks for programs."""
        self._filled(self.config.program, sample, "")
        self._checks(sample)
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
        checks, limits, ended = self._checks(sample), self.config.limits, []
        for one in replies:
            program = self._filled(self.config.program, sample, one.text)
            verdict = run_program(program, checks, limits, mechanism=self._mechanism)
            ended.append(verdict.status)
        num, num_passed = len(ended), ended.count("passed")
        found = {f"pass@{k}": pass_at(k, num, num_passed) for k in self.config.ks}
        return {**found, "timeouts": ended.count("timeout") / num}

    def solution(self, sample: Sample) -> str:
        """Refuses: what a solved example would be is not known."""
        raise DataError("programs have no solved examples", where="num_shots", hint="set it to 0")

    def _checks(self, sample: Sample) -> str:
        checks = self._filled(self.config.checks, sample, "")
        try:
            compile(checks, "checks", "exec")
        except (SyntaxError, ValueError) as error:  # of bytes that no source may have
            raise DataError(
                f"checks are not Python without the answer: {error}",
                where=sample.where,
                hint="leave {prompt} out of the task's field `checks` where it is not a function "
                "with a docstring",
            ) from None
        return checks

    def _filled(self, template: str, sample: Sample, answer: str) -> str:
        fields = {**sample.fields, "answer": answer}
        return fill(template, attrs.evolve(sample, fields=fields))


def pass_at(k: int, num: int, num_passed: int) -> float:
    """Returns how likely one of `k` programs, drawn from `num`, is among those that passed.

    Source: Chen et al., 2021, arXiv:2107.03374, equation 1.
    """
    return 1 - math.comb(num - num_passed, k) / math.comb(num, k)
