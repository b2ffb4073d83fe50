"""The rewards that axcore brings: right answers, formats, lengths, programs, and functions."""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Literal

from axcore.config import REQUIRED, NonNegativeFloat, PositiveFloat, PositiveInt, config
from axcore.errors import ConfigError, DataError
from axcore.rewards.reward import COMPLETION_TOKENS, Reward, WorkerReward, answer_of
from axcore.sandbox import ProgramLimits, choose_mechanism, run_program


class ExactMatch(Reward):
    """1 where the completion is the field `answer`, white space around both left out; else 0."""

    def score(self, prompt: str, completion: str, fields: Mapping[str, Any]) -> float:
        """Return 1 or 0."""
        return float(completion.strip() == answer_of(fields).strip())


class MatchingCharacters(Reward):
    """The share of characters that are those of the field `answer`, place by place.

    It is 1 for the answer itself, and less for what is too short or too long.
    """

    def score(self, prompt: str, completion: str, fields: Mapping[str, Any]) -> float:
        """Return the share."""
        answer, text = answer_of(fields).strip(), completion.strip()
        num_right = sum(a == b for a, b in zip(text, answer, strict=False))
        return num_right / max(1, len(answer), len(text))


class NumericAnswer(Reward):
    r"""1 where the final answer of the completion equals that of the field `answer`; else 0.

    The final answer of a text is the content of its last `\boxed{}`, else what follows its last
    `####`, else its last number; of the field, else all of it. Two that are numbers are compared as
    numbers, `1,234`, `3/4`, `\frac{3}{4}`, `50%` (which is 50) and `$5.00` among them; others as
    texts without white space.
    """

    @config
    class Config(Reward.Config):
        """Describes a `NumericAnswer`.

        Args:
            tolerance: Numbers may differ by so much, times the right one where that is above 1.
        """

        tolerance: NonNegativeFloat = 1e-6

    config: Config

    def score(self, prompt: str, completion: str, fields: Mapping[str, Any]) -> float:
        """Return 1 or 0.

        Raises:
            DataError: The field `answer` is empty.
        """
        answer = answer_of(fields)
        right, found = marked_answer(answer) or answer.strip(), final_answer(completion)
        if not right:
            raise DataError(
                f"the field `answer` is {answer!r:.80}; expected a text that is not empty",
                where="data.prompts",
                hint='write a number, "#### 42" or "\\\\boxed{42}"',
            )
        if found is None:
            return 0.0
        first, second = as_number(found), as_number(right)
        if first is None or second is None:
            return float("".join(found.split()) == "".join(right.split()))
        allowed = self.config.tolerance * max(1.0, abs(float(second)))
        return float(abs(first - second) <= allowed)


_NUMBER = r"[-+]?(?:\d[\d,]*)?\.?\d+(?:[eE][-+]?\d+)?(?:\s*/\s*\d+)?"
_NUMBERS = re.compile(_NUMBER)
_FRACTION = re.compile(r"(-?)\\[dt]?frac\s*\{(-?[\d.]+)\}\s*\{(-?[\d.]+)\}")


def final_answer(text: str) -> str | None:
    r"""Return the final answer of a text; None where it has none.

    >>> final_answer(r"so it is $\boxed{\frac{1}{2}}$."), final_answer("3 + 4 = 7.")
    ('\\frac{1}{2}', '7')
    """
    numbers = _NUMBERS.findall(text)
    return marked_answer(text) or (numbers[-1] if numbers else None)


def marked_answer(text: str) -> str | None:
    """Return what a text marks as its answer; None where it marks nothing."""
    boxed = _last_boxed(text)
    if boxed is not None:
        return boxed.strip() or None
    _, mark, after = text.rpartition("####")
    return after.strip().splitlines()[0].strip() if mark and after.strip() else None


def _last_boxed(text: str) -> str | None:
    """Return what is in the last closed braces of `\\boxed`."""
    begin = text.rfind("\\boxed{")
    while begin >= 0:
        depth = 0
        for at in range(begin + len("\\boxed"), len(text)):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            if not depth:
                return text[begin + len("\\boxed{") : at]
        begin = text.rfind("\\boxed{", 0, begin)
    return None


def as_number(text: str) -> Fraction | None:
    """Return the number that a text is, exactly; None where it is not one."""
    plain = text.strip().strip("$").strip().rstrip(".").replace("\\%", "%").replace("\\$", "$")
    plain = plain.strip("$% ").replace(",", "")
    fraction = _FRACTION.fullmatch(plain)
    if fraction is not None:
        sign, above, below = fraction.groups()
        plain = f"{sign}{above}/{below}"
    above, _, below = (part.strip() for part in plain.partition("/"))
    # A bound: an exponent of a billion would be a number that fills the memory.
    if max(len(above), len(below)) > 100 or re.search(r"[eE][-+]?\d{4}", plain):
        return None
    try:
        number = Fraction(above) / (Fraction(below) if below else 1)
    except (ValueError, ZeroDivisionError):
        return None
    return number


class RegexMatch(WorkerReward):
    """1 where a pattern is found in the completion, else 0: a reward for a format."""

    @config
    class Config(WorkerReward.Config):
        r"""Describes a `RegexMatch`.

        Args:
            pattern: Of Python's `re`, where `.` is any character; `\A` and `\Z` are both ends.
            time_limit_s: Seconds that the reward of a completion may take; some patterns take
                forever on some texts.
        """

        pattern: str = REQUIRED
        time_limit_s: PositiveFloat = 5.0
        num_workers: PositiveInt | None = 1

    config: Config

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        try:
            self._pattern = re.compile(cfg.pattern, re.DOTALL)
        except re.error as error:
            raise ConfigError(
                f"pattern is {cfg.pattern!r:.80}, not a regular expression: {error}",
                where="data.rewards",
                hint=r"pattern=\A<think>.*</think>",
            ) from None

    def score(self, prompt: str, completion: str, fields: Mapping[str, Any]) -> float:
        """Return 1 or 0."""
        return float(self._pattern.search(completion) is not None)


class OverlongPenalty(Reward):
    """0 for completions that are short enough, falling to -1 at the longest.

    Source: Yu et al. 2025, arXiv:2503.14476, eq. 13.
    """

    @config
    class Config(Reward.Config):
        """Describes an `OverlongPenalty`.

        Args:
            max_tokens: Tokens of a completion at which it is -1, `data.max_new_tokens` mostly.
            buffer_tokens: Over how many tokens before that it falls.
        """

        max_tokens: PositiveInt = REQUIRED
        buffer_tokens: PositiveInt = REQUIRED

    config: Config

    def score(self, prompt: str, completion: str, fields: Mapping[str, Any]) -> float:
        """Return a number from -1 to 0."""
        cfg = self.config
        num_over: int = fields[COMPLETION_TOKENS] - (cfg.max_tokens - cfg.buffer_tokens)
        return -min(max(num_over / cfg.buffer_tokens, 0.0), 1.0)


class FieldValue(Reward):
    """The number in a field, which an environment wrote, or the prompt has."""

    @config
    class Config(Reward.Config):
        """Describes a `FieldValue`.

        Args:
            name: Of the field.
            missing: What a completion without it is worth, as one that was cut off before the
                environment wrote it; None makes that a failure.
        """

        name: str = REQUIRED
        missing: float | None = None

    config: Config

    def score(self, prompt: str, completion: str, fields: Mapping[str, Any]) -> float:
        """Return the number.

        Raises:
            DataError: There is no such field.
        """
        cfg = self.config
        if cfg.name not in fields and cfg.missing is None:
            raise DataError(
                f"there is no field {cfg.name!r}; the fields are {', '.join(fields) or 'none'}",
                where="data.rewards",
                hint=f'--set "data.rewards=field(name={cfg.name}, missing=0)"',
            )
        value: float = fields.get(cfg.name, cfg.missing)
        return value


_CODE_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


class CodeTests(WorkerReward):
    """What a program in the completion is worth by the tests in a field, run in the sandbox.

    The program is the last block of code between lines of three backticks, or all of the completion
    where there is none. Programs and tests run as `axcore evaluate` runs them, with no network and
    no files.
    """

    @config
    class Config(WorkerReward.Config):
        """Describes a `CodeTests`.

        Args:
            tests: The field with Python that calls the program's functions and raises an exception
                where one is wrong, `assert f(1) == 2` for example: a text, or a list of texts.
            counts: Of a list of tests: 1 where `all` pass, or the `share` that passes.
            limits: What a program may use.
            allow_unsandboxed_code: Whether programs run also where this machine cannot confine
                them; they can then do whatever this user can.
        """

        tests: str = "tests"
        counts: Literal["all", "share"] = "all"
        limits: ProgramLimits = ProgramLimits()
        allow_unsandboxed_code: bool = False
        time_limit_s: PositiveFloat = 120.0

    config: Config

    def check(self) -> None:
        """Check that there is a sandbox.

        Raises:
            ConfigError: There is none.
        """
        self._mechanism()

    def score(self, prompt: str, completion: str, fields: Mapping[str, Any]) -> float:
        """Run the program with its tests.

        Raises:
            DataError: The field has no tests.
        """
        blocks = _CODE_BLOCK.findall(completion)
        program, tests = blocks[-1] if blocks else completion, self._tests(fields)
        passed = [
            run_program(program, one, self.config.limits, mechanism=self._mechanism()).status
            == "passed"
            for one in tests
        ]
        return sum(passed) / len(passed)

    def _tests(self, fields: Mapping[str, Any]) -> list[str]:
        found = fields.get(self.config.tests)
        tests = [found] if isinstance(found, str) else list(found or ())
        if not tests or not all(isinstance(one, str) and one.strip() for one in tests):
            raise DataError(
                f"the field `{self.config.tests}` of a prompt is {found!r:.80}; expected Python, "
                "as a text or a list of texts",
                where="data.prompts",
                hint='give each line "tests": ["assert f(1) == 2"]',
            )
        return ["\n".join(tests)] if self.config.counts == "all" else tests

    def _mechanism(self) -> str:
        return choose_mechanism(allow_unsandboxed=self.config.allow_unsandboxed_code)


class PythonReward(WorkerReward):
    """What a function of yours returns.

    On the command line, `--set data.rewards=rewards.py:score` names one by its file, and
    `my_package.rewards:score` by its module. A run keeps a copy of the file with the code that is
    its own, so opening the run of somebody else runs none of it unasked.
    """

    @config
    class Config(WorkerReward.Config):
        """Describes a `PythonReward`.

        Args:
            fn: `fn(prompt, completion, fields)` returns a number, as `Reward.score` does.
        """

        fn: Callable[..., Any] = REQUIRED

    config: Config

    def score(self, prompt: str, completion: str, fields: Mapping[str, Any]) -> float:
        """Call the function."""
        score: float = self.config.fn(prompt, completion, fields)
        return score
