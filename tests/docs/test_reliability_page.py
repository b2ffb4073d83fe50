"""The page on reliability shows the policy that a supervisor has."""

import importlib.util
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import get_args

from axcore.config import apply_overrides
from axcore.resilience.policy import Cause, Policy

TABLE = Path(__file__).parents[2] / "benchmarks" / "reliability" / "table.py"
PAGE = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text(encoding="utf-8")


def test_every_cause_is_on_the_page_with_its_budget():
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| (\w+) \|$", PAGE, re.MULTILINE))
    policy = Policy()
    assert policy.window_s == 24 * 3600
    budgets = {cause: policy.escalation.get(cause, ()) for cause in get_args(Cause)}
    assert rows == {
        cause: str(sum(level.times for level in levels) or "none")
        for cause, levels in budgets.items()
    }


def test_the_tables_are_those_of_the_results(tmp_path):
    spec = importlib.util.spec_from_file_location("table", TABLE)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert made.page_with_tables(PAGE) == PAGE, "run: make reliability, or table.py"
    shown = made.table(tmp_path)
    assert len(made.PROMISES) == 25
    assert shown.count("| not measured |") + shown.count("| not built |") == 25
    assert set(made.NOT_BUILT) < set(made.PROMISES)


def test_the_policies_of_the_commands_are_policies():
    words = [
        word for line in re.findall("^axcore launch .*$", PAGE, re.M) for word in shlex.split(line)
    ]
    given = [text for flag, text in pairwise(words) if flag == "--policy"]
    assert given
    assert apply_overrides(Policy(), given) != Policy()
