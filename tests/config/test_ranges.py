"""Numbers out of their range, and what errors say about values: where they are, and what fits."""

import math

import attrs
import pytest

from axcore.config import (
    REQUIRED,
    Configurable,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    apply_overrides,
    config,
    evolve,
    from_json,
    from_yaml,
    update_config,
)
from axcore.errors import ConfigError


class Part(Configurable):
    @config
    class Config(Configurable.Config):
        dim: PositiveInt = REQUIRED
        heads: PositiveInt | None = None
        steps: NonNegativeInt = 40
        peak: NonNegativeFloat = 0.003
        theta: PositiveFloat = 1e4
        rate: Fraction = 0.0
        sizes: tuple[PositiveInt, ...] = (1, 2)


class Whole(Configurable):
    @config
    class Config(Configurable.Config):
        part: Part.Config = Part.Config(dim=128)

    def __init__(self, cfg):
        super().__init__(cfg)
        self.part = cfg.part.build()


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("dim", 0, "dim is 0; expected 1 or more"),
        ("dim", -8, "dim is -8; expected 1 or more"),
        ("heads", -1, "heads is -1; expected 1 or more"),
        ("steps", -1, "steps is -1; expected 0 or more"),
        ("peak", -1.0, r"peak is -1\.0; expected a finite number of 0 or more"),
        ("peak", math.inf, "peak is inf; expected a finite number of 0 or more"),
        ("theta", 0.0, r"theta is 0\.0; expected a finite number above 0"),
        ("rate", 1.0, r"rate is 1\.0; expected 0 or more and less than 1"),
        ("sizes", (4, 0), r"sizes\[1\] is 0; expected 1 or more"),
        ("dim", "8", "dim is '8'; expected int, got str"),
    ],
)
def test_a_value_out_of_its_range_is_refused_when_it_is_set(field, value, says):
    with pytest.raises(ConfigError, match=says):
        Part.Config(**{"dim": 1, field: value})
    with pytest.raises(ConfigError, match=says):
        update_config(Whole.Config(), {f"part.{field}": value})


def test_values_on_the_edge_of_a_range_are_kept():
    made = Part.Config(dim=1, heads=None, steps=0, peak=0, theta=1e-9, rate=0)
    assert (made.dim, made.heads, made.peak) == (1, None, 0.0)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("part.dim=-8", "dim is -8; expected 1 or more"),
        ("part.dim=x", "expected int, got 'x'"),
        ("part.peak=inf", "peak is inf; expected a finite number"),
        ("part.heads=x", r"expected int \| None, got 'x'"),
    ],
)
def test_a_wrong_override_says_where_and_gives_what_is_there_as_the_example(override, says):
    with pytest.raises(ConfigError, match=says) as raised:
        apply_overrides(Whole.Config(), [override])
    path = override.partition("=")[0]
    example = {"part.dim": "128", "part.peak": "0.003", "part.heads": "VALUE"}[path]
    assert f"where:  {path}" in str(raised.value)
    assert f"hint:   --set {path}={example}" in str(raised.value)


@pytest.mark.parametrize("text", ["", " \n"])
@pytest.mark.parametrize("read", [from_json, from_yaml])
def test_an_empty_config_file_is_said_to_be_empty(read, text):
    with pytest.raises(ConfigError, match="there is no config: nothing is written there") as raised:
        read(text, set_in="mine.yaml")
    assert "axcore config show" in raised.value.hint


def test_setting_a_field_points_to_evolve():
    cfg = Part.Config(dim=1)
    with pytest.raises(attrs.exceptions.FrozenInstanceError, match=r"evolve\(cfg, dim=\.\.\.\)"):
        cfg.dim = 3
    with pytest.raises(ConfigError, match="did you mean 'dim'"):
        cfg.dmi = 3
    assert evolve(cfg, dim=3).dim == 3
