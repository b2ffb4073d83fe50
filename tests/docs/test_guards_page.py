"""What the page on guards shows of fault plans is what there is."""

import re
from pathlib import Path

from axcore.config import from_yaml
from axcore.resilience.faults import Fault, FaultPlan, Hang, Signal

PAGE = (Path(__file__).parents[2] / "docs" / "guards.md").read_text(encoding="utf-8")


def test_the_plan_of_the_page_loads():
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)
    faults = (Signal(at_step=20), Hang(at_step=40, process=1, seconds=30.0))
    assert from_yaml(text) == FaultPlan.Config(faults=faults)


def test_the_page_lists_every_fault():
    listed = re.findall(r"^\| `(\w+)` \|", PAGE, re.M)
    assert listed == [one.__name__ for one in kinds(Fault)]


def kinds(cls):
    """The classes below one that have none below themselves."""
    return [kind for one in cls.__subclasses__() for kind in kinds(one)] or [cls]
