"""The page on ahead-of-time compilation shows what was recorded last."""

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tables_are_those_of_the_results():
    spec = importlib.util.spec_from_file_location("aot_tables", ROOT / "benchmarks/aot_tables.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    page = made.PAGE.read_text(encoding="utf-8")
    assert made.page_with_tables(page) == page, "run: python benchmarks/aot_tables.py"
    for name, experiments in made.FEW.items():
        other = made.PAGE.with_name(f"{name}.md").read_text(encoding="utf-8")
        assert made.page_with_few(other, experiments) == other


def test_the_table_of_served_models_is_that_of_the_results():
    results = ROOT / "benchmarks" / "results" / "serving_compiled.json"
    page = (ROOT / "docs" / "aot.md").read_text(encoding="utf-8")
    for name, found in json.loads(results.read_text(encoding="utf-8"))["figures"].items():
        experiment, target = name.split(" on ")
        first, published = found["first_token"]["0"], found["published_first_token_s"]
        one, many = found["token"]["1"], found["token"]["16"]
        row = (
            *(experiment, target, f"{1e3 * first['seconds']:.2g} ms", f"{1e3 * published:.0f} ms"),
            *(_ms(one["seconds"]), _ms(found["published_token_s"]), f"{one['over_floor']:.2f}"),
            *(_ms(many["seconds"]), f"{many['over_floor']:.2f}"),
        )
        assert f"| {' | '.join(row)} |" in page


def _ms(seconds):
    return f"{1e3 * seconds:.1f} ms"
