"""Makes what the tests share importable: import it before anything of theirs."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
sys.path += map(str, (TESTS / "trainer", TESTS / "support", ROOT / "benchmarks"))
