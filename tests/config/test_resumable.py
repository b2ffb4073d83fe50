"""Fields that may change when a run is resumed say so themselves, wherever they are in the tree."""

import pytest

from axcore.config import (
    REQUIRED,
    PositiveInt,
    Resumable,
    apply_overrides,
    config,
    describe_resumable,
    evolve,
    from_json,
    resumable_paths,
    to_json,
)
from axcore.errors import ConfigError


@config
class Part:
    size: int = 1
    cache: Resumable[str] = "small"


@config
class Whole:
    steps: Resumable[PositiveInt] = REQUIRED
    mesh: Resumable[dict[str, int] | None] = None
    part: Part = Part()
    parts: tuple[Part, ...] = ()
    save: Resumable[Part] = Part()


def test_paths_of_resumable_fields_are_found_at_any_depth_and_end_at_the_outermost():
    cfg = Whole(steps=2, parts=(Part(), Part(cache="large")))
    paths = ("steps", "mesh", "part.cache", "parts[0].cache", "parts[1].cache", "save")
    assert resumable_paths(cfg) == paths
    assert describe_resumable(paths) == "steps, mesh, save, **.cache"


def test_a_resumable_field_is_checked_saved_and_overridden_as_any_other():
    cfg = apply_overrides(Whole(steps=2), ["mesh={'data': 2}", 'mesh["data"]=4', "steps=3"])
    assert (cfg.steps, cfg.mesh) == (3, {"data": 4})
    assert from_json(to_json(cfg)) == cfg
    with pytest.raises(ConfigError, match="steps is 0; expected 1 or more"):
        evolve(cfg, steps=0)
    with pytest.raises(ConfigError, match=r"expected dict\[str, int\] | None, got 'many'"):
        apply_overrides(cfg, ["mesh=many"])


def test_a_subclass_may_mark_what_its_base_did_not():
    @config
    class Looser(Part):
        size: Resumable[int] = 1

    assert set(resumable_paths(Looser())) == {"size", "cache"}
