"""Kinds of tasks: multiple choice, written answers, perplexity, and programs that are run."""

import math
import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from axcore.config import NonNegativeFloat, PositiveInt, config
from axcore.errors import ConfigError, DataError
from axcore.evaluation.questions import Continuation, Likelihood, TextLikelihood
from axcore.evaluation.samples import Sample, SampleSource
from axcore.evaluation.scored_task import (
    Estimate,
    ScoredSample,
    ScoredTask,
    exponential,
    fill,
    ratio,
)
from axcore.sandbox import ProgramLimits, choose_mechanism, run_program


class MultipleChoice(ScoredTask):
    """The choice with the largest log-probability is the model's.

    Measures: `accuracy`; `accuracy_per_byte`, of log-probabilities divided by the bytes of the
    choice; `accuracy_per_character`, divided by its characters; `accuracy_per_token`, divided by
    its tokens. Of equal ones the first counts.
    """

    @config
    class Config(ScoredTask.Config):
        """Describes a `MultipleChoice`.

        Args:
            choices: The value that lists the choices.
            answer: The value that says which is right: its number from 0, or its text.
            separator: What is between the prompt and each choice, and is scored with it.
        """

        choices: str = "choices"
        answer: str = "answer"
        separator: str = " "

    config: Config

    def questions(self, sample: Sample, before: str) -> tuple[Likelihood, ...]:
        """Ask how likely each choice is."""
        self._answer(sample)
        context = before + self.text(sample)
        return tuple(
            Likelihood(context=context, continuation=self.config.separator + choice)
            for choice in self._choices(sample)
        )

    def measures(self, sample: Sample, replies: Sequence[Any]) -> Mapping[str, float]:
        """Compare the likeliest choice with the right one."""
        logprobs = np.array([reply.logprob for reply in replies])
        choices, right = self._choices(sample), self._answer(sample)
        sizes = {
            "accuracy": [1] * len(choices),
            "accuracy_per_byte": [len(choice.encode()) for choice in choices],
            "accuracy_per_character": [len(choice) for choice in choices],
            "accuracy_per_token": [reply.num_tokens for reply in replies],
        }
        return {
            name: float(np.argmax(logprobs / np.maximum(size, 1)) == right)
            for name, size in sizes.items()
        }

    def solution(self, sample: Sample) -> str:
        """Return the right choice."""
        return self.config.separator + self._choices(sample)[self._answer(sample)]

    def _choices(self, sample: Sample) -> list[str]:
        name = self.config.choices
        found = sample.value(name)
        is_list = isinstance(found, list | tuple) and len(found) > 1
        if not (is_list and all(isinstance(one, str) and one for one in found)):
            raise DataError(
                f"{name!r} is {found!r:.60}; expected a list of two texts or more",
                where=sample.where,
            )
        return list(found)

    def _answer(self, sample: Sample) -> int:
        """Return the number of the right choice."""
        name, choices = self.config.answer, self._choices(sample)
        found = sample.value(name)
        if isinstance(found, str):
            if found in choices:
                return choices.index(found)
            found = int(found) if found.isascii() and found.isdigit() else found
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < len(choices):
            raise DataError(
                f"{name!r} is {found!r:.60}; expected one of the choices, or a number from 0 to "
                f"{len(choices) - 1}",
                where=sample.where,
            )
        return found


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class WrittenAnswer(ScoredTask):
    """Measures `exact_match`, and `f1` of words as SQuAD counts them."""

    @config
    class Config(ScoredTask.Config):
        """Describes a `WrittenAnswer`.

        Args:
            answer: The right answer, with `{name}` for values of the sample.
            separator: What is between the prompt and the answer of a solved example.
            derivation: What a solved example shows in place of the answer; empty shows that.
            max_tokens: Tokens of an answer at most.
            stop: Texts that end an answer.
            pattern: A regular expression that finds the answer in what was written, its first
                group where it has one; empty takes all of it. What has no match is wrong.
            takes_last: Whether the last match counts; otherwise the first.
            ignored: Regular expressions of what is removed from both before they are compared.
        """

        answer: str = "{answer}"
        separator: str = " "
        derivation: str = ""
        max_tokens: PositiveInt = 32
        stop: tuple[str, ...] = ("\n",)
        pattern: str = ""
        takes_last: bool = False
        ignored: tuple[str, ...] = ()

    config: Config

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self._pattern = _compiled(cfg.pattern, "pattern") if cfg.pattern else None
        self._ignored = [_compiled(one, "ignored") for one in cfg.ignored]

    def questions(self, sample: Sample, before: str) -> tuple[Continuation, ...]:
        """Ask for an answer."""
        fill(self.config.answer, sample)
        return (
            Continuation(
                prompt=before + self.text(sample),
                max_tokens=self.config.max_tokens,
                stop=self.config.stop,
            ),
        )

    def measures(self, sample: Sample, replies: Sequence[Any]) -> Mapping[str, float]:
        """Compare the answer."""
        expected = self._plain(fill(self.config.answer, sample))
        found = self.extracted(replies[0].text)
        given = None if found is None else self._plain(found)
        return {
            "exact_match": float(given == expected),
            "f1": 0.0 if given is None else word_f1(given, expected),
        }

    def solution(self, sample: Sample) -> str:
        """Return the right answer, or its derivation."""
        return self.config.separator + fill(self.config.derivation or self.config.answer, sample)

    def extracted(self, text: str) -> str | None:
        """Return the answer in what was written; None where the pattern finds none."""
        if self._pattern is None:
            return text
        matches = list(self._pattern.finditer(text))
        if not matches:
            return None
        match = matches[-1 if self.config.takes_last else 0]
        return next((group for group in match.groups() if group is not None), match[0])

    def _plain(self, text: str) -> str:
        for one in self._ignored:
            text = one.sub("", text)
        return text.strip()


def word_f1(given: str, expected: str) -> float:
    """Return the harmonic mean of precision and recall of words.

    Case, punctuation and articles do not count.

    Source: Rajpurkar et al., 2016, arXiv:1606.05250, section 6.1.
    """
    first, second = _words(given), _words(expected)
    if not first or not second:
        return float(first == second)
    shared = sum((Counter(first) & Counter(second)).values())
    return 2 * shared / (len(first) + len(second))


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def _compiled(pattern: str, where: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"{pattern!r} is not a regular expression: {error}", where=where
        ) from None


_SPACES = re.compile(r"\s+")


class Perplexity(ScoredTask):
    """Perplexity by token, by byte and by word, and bits per byte, which compare tokenizers fairly.

    Words are what white space divides a text into. Where samples are of several sources there is
    `bits_per_byte/SOURCE` of each.
    """

    @config
    class Config(ScoredTask.Config):
        """Describes a `Perplexity`.

        Args:
            prompt: The text, with `{name}` for values of the sample.
            source: The value that says where a text is from; empty where all are from one source.
        """

        prompt: str = "{text}"
        source: str = ""

    config: Config

    def questions(self, sample: Sample, before: str) -> tuple[TextLikelihood, ...]:
        """Ask how likely the full text is."""
        text = self.text(sample)
        if not text:
            raise DataError("its text is empty", where=sample.where)
        self.source_of(sample)
        return (TextLikelihood(text=before + text),)

    def measures(self, sample: Sample, replies: Sequence[Any]) -> Mapping[str, float]:
        """Return the log-probability of the text, and its sizes."""
        (reply,) = replies
        text = self.text(sample)
        return {
            "logprob": reply.logprob,
            "num_tokens": float(reply.num_tokens),
            "num_bytes": float(len(text.encode())),
            "num_words": float(len(_SPACES.split(text))),
        }

    def solution(self, sample: Sample) -> str:
        """Refuse: nothing is solved."""
        raise DataError(
            "a perplexity has no solved examples", where="num_shots", hint="set it to 0"
        )

    def source_of(self, sample: Sample) -> str:
        """Return the value that the config names."""
        return str(sample.value(self.config.source)) if self.config.source else ""

    def metrics(self, scored: Sequence[ScoredSample]) -> dict[str, Estimate]:
        """Return ratios of totals, not means over texts."""
        found = {
            f"{unit}_perplexity": exponential(_nats_per(scored, f"num_{unit}s"))
            for unit in ("token", "byte", "word")
        }
        found["bits_per_byte"] = _bits(scored)
        sources = sorted({one.source for one in scored})
        if sources != [""]:
            for source in sources:
                own = [one for one in scored if one.source == source]
                found[f"bits_per_byte/{source}"] = _bits(own)
        return found


def _bits(scored: Sequence[ScoredSample]) -> Estimate:
    return _nats_per(scored, "num_bytes", scale=1 / math.log(2))


def _nats_per(scored: Sequence[ScoredSample], unit: str, *, scale: float = 1.0) -> Estimate:
    nats = [-scale * one.measures["logprob"] for one in scored]
    return ratio(nats, [one.measures[unit] for one in scored])


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
        """Ask for programs."""
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
        """Run the programs, one after the other."""
        checks, limits, ended = self._checks(sample), self.config.limits, []
        for one in replies:
            program = self._filled(self.config.program, sample, one.text)
            verdict = run_program(program, checks, limits, mechanism=self._mechanism)
            ended.append(verdict.status)
        num, num_passed = len(ended), ended.count("passed")
        found = {f"pass@{k}": pass_at(k, num, num_passed) for k in self.config.ks}
        return {**found, "timeouts": ended.count("timeout") / num}

    def solution(self, sample: Sample) -> str:
        """Refuse: what a solved example would be is not known."""
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
    """Return how likely one of `k` programs, sampled from `num`, is among those that passed.

    Source: Chen et al., 2021, arXiv:2107.03374, equation 1.
    """
    return 1 - math.comb(num - num_passed, k) / math.comb(num, k)


class Sums(SampleSource):
    """Additions and subtractions of two numbers, with the values `prompt` and `answer`."""

    @config
    class Config(SampleSource.Config):
        """Describes `Sums`.

        Args:
            num: Samples there are.
            num_digits: Digits of each number at most.
        """

        num: PositiveInt = 200
        num_digits: PositiveInt = 2

    config: Config

    def samples(self) -> Iterator[Sample]:
        """Yield the sums."""
        draws = np.random.default_rng(0)
        for number in range(self.config.num):
            first, second = (int(one) for one in draws.integers(0, 10**self.config.num_digits, 2))
            is_sum = bool(draws.integers(2))
            answer = first + second if is_sum else first - second
            prompt = f"{first} {'+' if is_sum else '-'} {second} ="
            fields = {"prompt": prompt, "answer": str(answer)}
            yield Sample(where=f"sum {number}", fields=fields)


def arithmetic() -> WrittenAnswer.Config:
    """Return the task of writing the results of sums."""
    return WrittenAnswer.Config(samples=Sums.Config(), max_tokens=8, pattern=r"-?\d+", stop=("\n",))
