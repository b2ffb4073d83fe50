"""Building: parents fill, what is missing is reported at once, errors say where."""

from typing import Any

import pytest
from config_trees import NET, FeedForward, Linear, Net

from axcore.config import REQUIRED, Configurable, config, evolve, update_config
from axcore.errors import ConfigError


class Root(Configurable):
    @config
    class Config(Configurable.Config):
        net: Net.Config = Net.Config()
        second: Net.Config = Net.Config()

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.net = cfg.net.build()
        self.second = cfg.second.build(dim=3)


class Fails(Configurable):
    def __init__(self, cfg: Any) -> None:
        raise KeyError("deep inside")


def test_parents_fill_what_their_children_need() -> None:
    net = NET.build()
    assert net.layers[1].up.config == Linear.Config(in_dim=4, out_dim=16)
    assert net.layers[1].config.dim == 4
    assert Net.Config(dim=4) == NET


def test_every_missing_field_of_the_tree_is_told_at_once() -> None:
    cfg = Root.Config(second=Net.Config(layers=[FeedForward.Config()]))
    with pytest.raises(ConfigError) as caught:
        cfg.build()
    assert caught.value.what == (
        "Root.Config lacks 2 required fields:\n  net.dim\n  second.layers[0].hidden_dim"
    )
    assert "--set net.dim=..." in str(caught.value.hint)


def test_a_field_that_holds_another_value_cannot_be_filled() -> None:
    with pytest.raises(ConfigError) as caught:
        update_config(NET, {"layers[1].dim": 5}).build()
    assert caught.value.what == "dim is 5, but the parent fills in 4"
    assert caught.value.where == "layers[1].dim"
    assert "test_build.py" in str(caught.value.set_in)
    update_config(NET, {"layers[1].dim": 4}).build()


def test_a_field_that_the_child_lacks_cannot_be_filled() -> None:
    with pytest.raises(ConfigError, match=r"Net.Config has no field 'dim' for its|no field 'dim'"):
        evolve(NET, layers=[Linear.Config()]).build()


def test_what_the_parent_fills_in_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"in_dim is 'x'; expected int, got str"):
        Linear.Config(out_dim=1).build(in_dim="x")


def test_an_exception_keeps_its_type_and_gains_the_path() -> None:
    cfg = evolve(NET, layers=[Fails.Config()])

    class Holder(Configurable):
        @config
        class Config(Configurable.Config):
            children: tuple[Configurable.Config, ...] = (Fails.Config(),)

        def __init__(self, cfg: Any) -> None:
            self.children = [child.build() for child in cfg.children]

    with pytest.raises(KeyError, match="deep inside") as caught:
        Holder.Config().build()
    assert caught.value.__notes__ == ["while building children[0]"]
    assert cfg.layers[0] == Fails.Config()


def test_a_config_in_two_slots_is_reported_at_both() -> None:
    shared = FeedForward.Config()
    with pytest.raises(ConfigError) as caught:
        evolve(NET, layers=(shared, shared)).build()
    assert "layers[0].hidden_dim\n  layers[1].hidden_dim" in caught.value.what


def test_a_child_that_the_parent_edits_before_building_is_found_by_its_class() -> None:
    class Editor(Configurable):
        @config
        class Config(Configurable.Config):
            inner: FeedForward.Config = FeedForward.Config()

        def __init__(self, cfg: Any) -> None:
            self.inner = evolve(cfg.inner, activation="gelu").build(dim=2)

    with pytest.raises(ConfigError, match=r"\n  inner.hidden_dim"):
        Editor.Config().build()


def test_a_value_without_an_owner_cannot_be_built() -> None:
    @config
    class Loose(Configurable.Config):
        pass

    with pytest.raises(ConfigError, match="belongs to no class, so it cannot be built"):
        Loose().build()


def test_a_template_stays_a_template() -> None:
    assert Net.Config().dim is REQUIRED
    with pytest.raises(ConfigError, match=r"lacks 1 required field:\n  dim"):
        Net.Config().build()
