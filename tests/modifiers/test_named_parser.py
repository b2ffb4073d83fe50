"""Changes as users write them."""

import pytest

from axcore.config import find_config
from axcore.errors import ConfigError
from axcore.experiments.tiny import tiny
from axcore.modifiers import RematModifier, with_changes
from axcore.modifiers.named_parser import parse_change
from axcore.plugins import Hardware

CPU = Hardware.parse("cpu-8")


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("remat", "remat", ()),
        ("remat()", "remat", ()),
        (" remat ( policy = minimal ) ", "remat", ("policy=minimal",)),
        ("a(x='1,2', y=(3, 4))", "a", ("x='1,2'", "y=(3, 4)")),
        ("a(x={'b': [1, 2], 'c': (3,)})", "a", ("x={'b': [1, 2], 'c': (3,)}",)),
        ("a(x=axcore.layers:FeedForward)", "a", ("x=axcore.layers:FeedForward",)),
        ("a(x=')')", "a", ("x=')'",)),
    ],
)
def test_text_is_a_name_and_values(text, name, values):
    assert parse_change(text) == (name, values)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it has no name"),
        ("remat(", "its parentheses do not close"),
        ("two names", "it has no name"),
        ("remat(minimal)", "'minimal' is no field=value"),
        ("a(x=(1, 2)", r"\) is missing"),
        ("a(x='b)", "' is missing"),
        ("a(x=1])", "']' closes nothing"),
    ],
)
def test_text_that_is_no_change_says_why_and_how_to_write_one(text, reason):
    with pytest.raises(ConfigError, match=f"is no change: .*{reason}") as error:
        parse_change(text)
    assert "--modify 'remat(policy=minimal)'" in error.value.hint


def test_values_are_read_by_the_type_of_their_field():
    cfg = with_changes(tiny(), ["accumulate(factor=4)"], CPU)
    assert cfg.num_micro_batches == 4
    with pytest.raises(ConfigError, match="expected int, got 'four'") as error:
        with_changes(tiny(), ["accumulate(factor=four)"], CPU)
    assert error.value.set_in == "--modify accumulate(factor=four)"


def test_unknown_field_says_what_is_near():
    with pytest.raises(ConfigError, match="did you mean 'policy'"):
        with_changes(tiny(), ["remat(polcy=full)"], CPU)


def test_values_go_into_variants_and_data_too():
    cfg = with_changes(tiny(), ["sliding_window(window=7)", "json_lines(folder=corpus)"])
    windows = [
        found.node.window for found in find_config(cfg.model, lambda node: hasattr(node, "window"))
    ]
    assert windows == [7]
    assert cfg.data.source.folder == "corpus"


def test_a_change_by_text_is_the_modifier_of_the_same_values():
    expected = RematModifier(policy="minimal").apply(tiny(), CPU)
    assert with_changes(tiny(), ["remat(policy=minimal)"], CPU) == expected
