"""What the rewards that axcore brings are, on texts whose worth is known."""

import pytest

from axcore.errors import ConfigError, DataError
from axcore.rewards import (
    CodeTests,
    ExactMatch,
    MatchingCharacters,
    NumericAnswer,
    OverlongPenalty,
    RegexMatch,
)
from axcore.rewards.builtin import final_answer
from axcore.sandbox import choose_mechanism


def score(cfg, completion, **fields):
    return cfg.build().score("a prompt", completion, fields)


def test_white_space_around_an_answer_does_not_count():
    assert score(ExactMatch.Config(), " 46\n", answer="46") == 1
    assert score(ExactMatch.Config(), "4 6", answer="46") == 0
    assert score(ExactMatch.Config(), "46", answer=46) == 1


@pytest.mark.parametrize(
    ("completion", "share"), [("abcd", 1), ("abxd", 0.75), ("ab", 0.5), ("abcdabcd", 0.5), ("", 0)]
)
def test_matching_characters_are_a_share_of_the_longer_text(completion, share):
    assert score(MatchingCharacters.Config(), completion, answer="abcd") == share


@pytest.mark.parametrize(
    ("completion", "answer", "right"),
    [
        ("3 + 4 = 7.", "7", 1),
        ("I count 7, not 8", "7", 0),
        ("It is 1,234 in all", "1234", 1),
        ("so $\\boxed{\\frac{3}{4}}$, not 7", "0.75", 1),
        ("\\boxed{-\\frac12}", "-\\frac12", 1),
        ("\\boxed{1} and then \\boxed{2}", "2", 1),
        ("\\boxed{x^{2} + 1}", "\\boxed{x^{2}+1}", 1),
        ("\\boxed{2", "2", 1),
        ("reasons 5\n#### 42", "so 6 * 7\n#### 42", 1),
        ("#### $1,000.00", "1000", 1),
        ("50%", "50", 1),
        ("3/4", "0.75", 1),
        ("-3", "3", 0),
        ("1e3", "1000", 1),
        ("1e999999999", "1", 0),
        ("no number", "7", 0),
        ("", "7", 0),
        ("1/0", "7", 0),
    ],
)
def test_final_answers_are_compared_as_numbers(completion, answer, right):
    assert score(NumericAnswer.Config(), completion, answer=answer) == right


def test_numbers_may_differ_by_the_tolerance():
    cfg = NumericAnswer.Config(tolerance=0.01)
    assert score(cfg, "3.14", answer="3.1416") == 1
    assert score(cfg, "3.1", answer="3.1416") == 0


def test_the_last_boxed_answer_that_is_closed_is_final():
    assert final_answer("\\boxed{a{b}c} \\boxed{d") == "a{b}c"


def test_a_pattern_may_span_lines_and_is_found_anywhere():
    cfg = RegexMatch.Config(pattern=r"\A<think>.*</think>")
    assert score(cfg, "<think>a\nb</think> c") == 1
    assert score(cfg, " <think>a</think>") == 0
    with pytest.raises(ConfigError, match="not a regular expression"):
        RegexMatch.Config(pattern="(").build()


@pytest.mark.parametrize(("num", "worth"), [(1, 0), (80, 0), (90, -0.5), (100, -1), (120, -1)])
def test_long_completions_cost_as_in_equation_13_of_dapo(num, worth):
    cfg = OverlongPenalty.Config(max_tokens=100, buffer_tokens=20)
    assert score(cfg, "", completion_tokens=num) == worth


@pytest.mark.parametrize("reward", [ExactMatch, MatchingCharacters, NumericAnswer])
def test_a_prompt_without_an_answer_is_an_error_and_not_a_zero(reward):
    with pytest.raises(DataError, match="no text `answer`; it has other"):
        score(reward.Config(), "1", other=1)


def test_programs_are_worth_the_tests_that_they_pass():
    try:
        choose_mechanism()
    except ConfigError as error:
        pytest.skip(error.what)
    tests = ["assert double(2) == 4", "assert double('a') == 5"]
    text = "Here it is:\n```python\ndef double(x):\n    return 2 * x\n```\nDone."
    assert score(CodeTests.Config(), text, tests=tests[0]) == 1
    assert score(CodeTests.Config(), text, tests=tests) == 0
    assert score(CodeTests.Config(counts="share"), text, tests=tests) == 0.5
    assert score(CodeTests.Config(), "def double(x:", tests=tests[0]) == 0


def test_a_prompt_without_tests_is_an_error_and_not_a_zero():
    with pytest.raises(DataError, match="`tests` of a prompt is None"):
        score(CodeTests.Config(), "pass")
