"""Every broken plugin is named, with what is broken and how to run without it, as documented."""

import pytest
from broken_plugins import NAME
from broken_plugins_page import BEGIN, PAGE, cases, section
from counts import count

CASES = cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.group}: {case.what}")
def test_broken_plugin_is_named_with_a_fix_and_as_the_page_has_it(case):
    printed = case.printed()
    has_fix = "hint:" in printed or f"AXCORE_BLOCK={NAME}" in printed
    is_named = NAME in printed and case.names in printed and has_fix
    count("broken plugins named with a fix", is_named, 1)
    assert is_named, printed
    page = PAGE.read_text(encoding="utf-8")
    if printed.startswith("TypeCheckError"):  # which the suite turns on, before jax can raise
        assert printed.splitlines()[-1] in page
    else:
        assert section(case, printed).rstrip() in page


def test_page_has_every_broken_plugin_once():
    _, _, generated = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    assert generated.count("```text") == len(CASES) >= 80
