"""Edits that cannot work say what, where and how to fix it; edits that work say who made them."""

import subprocess
import sys
from typing import Any

import pytest
from config_trees import NET, FeedForward, Linear, Net

from axcore.config import (
    apply_overrides,
    check_golden,
    config,
    evolve,
    field_names,
    find_config,
    origin_of,
    origins_of,
    render_config,
    replace_config,
    same_fields,
    update_config,
)
from axcore.errors import ConfigError


def test_a_replacement_that_matches_nothing_is_an_error_and_so_nothing_is_dropped() -> None:
    """A change is in what is returned, and what was given stays as it was."""
    with pytest.raises(
        ConfigError, match=r"no dict in Net.Config; it contains FeedForward.Config, Li"
    ):
        replace_config(NET, dict, FeedForward.Config())
    with pytest.raises(ConfigError, match=r"there is one at layers\[0\], layers\[1\]"):
        replace_config(NET, FeedForward, Linear.Config(), at="decoder.**")
    with pytest.raises(ConfigError, match=r"'\*\*.hiden_dim' matches nothing.*\n.*'hidden_dim'"):
        update_config(NET, {"**.hiden_dim": 1})
    assert replace_config(NET, dict, FeedForward.Config(), missing_ok=True) is NET
    changed = update_config(NET, {"**.has_bias": True})
    assert changed != NET
    assert len([n for _, n in find_config(changed, Linear) if n.has_bias]) == 2


def test_a_replacement_keeps_what_it_sets() -> None:
    """What a new node sets itself is not overwritten by the old one's settings."""
    cfg = update_config(NET, {"layers[*].activation": "gelu"})
    new = replace_config(cfg, FeedForward, FeedForward.Config(hidden_dim=99, activation="silu"))
    assert [layer.hidden_dim for layer in new.layers] == [99, 99]
    assert [layer.activation for layer in new.layers] == ["silu", "silu"]


class Wider(FeedForward):
    @config
    class Config(FeedForward.Config):
        factor: int = 1


def test_another_class_takes_all_fields_and_their_origins() -> None:
    cfg = update_config(NET, {"layers[*].activation": "gelu"}, set_in="me")
    new = replace_config(cfg, FeedForward, lambda old: same_fields(old, Wider, factor=2))
    old_fields, (first, _) = field_names(FeedForward.Config), new.layers
    assert [getattr(first, name) for name in old_fields] == [
        getattr(cfg.layers[0], name) for name in old_fields
    ]
    assert (type(first), first.factor) == (Wider.Config, 2)
    assert str(origin_of(new, "layers[0].activation")) == "me"


def test_a_class_that_lacks_a_field_which_is_set_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no place for what .*FeedForward.Config sets: .*gelu"):
        same_fields(FeedForward.Config(activation="gelu"), Linear)


def test_overrides_hold_when_the_component_is_swapped() -> None:
    """An override reaches a component that was swapped in."""

    class Other(FeedForward):
        pass

    overrides = ["layers[0].hidden_dim=32", "layers[*].linear.has_bias=true"]
    swapped = replace_config(NET, FeedForward, Other.Config(hidden_dim=1))
    result = apply_overrides(swapped, overrides)
    assert [type(layer) for layer in result.layers] == [Other.Config, Other.Config]
    assert [layer.hidden_dim for layer in result.layers] == [32, 1]
    early = replace_config(apply_overrides(NET, overrides), FeedForward, Other.Config())
    assert [layer.hidden_dim for layer in early.layers] == [32, 16]
    with pytest.raises(ConfigError, match=r"layers\[0\] \(Linear.Config\) has no 'hidden_dim'"):
        apply_overrides(replace_config(NET, FeedForward, Linear.Config()), overrides)


@pytest.mark.slow
def test_importing_the_package_has_no_effect_on_anything_else() -> None:
    """An import sets no flag and prints nothing."""
    code = """if True:
        import logging, os, signal, sys, warnings
        def state():
            handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
            return (dict(os.environ), list(warnings.filters), logging.root.level, handlers,
                    list(logging.root.handlers), sys.excepthook, sys.getrecursionlimit())
        before = state()
        import axcore.config
        assert "jax" not in sys.modules and "yaml" not in sys.modules
        assert state() == before
        import jax
        kept, before = dict(jax.config.values), state()
        import axcore.module
        assert dict(jax.config.values) == kept and state() == before
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@pytest.mark.parametrize(
    ("path", "value", "what", "where"),
    [
        ("dim", "4", "dim is '4'; expected int, got str", "dim"),
        ("layers[1].dim", "4", "dim is '4'; expected int, got str", "layers[1].dim"),
        (
            "layers[0].linear.has_bias",
            1,
            "has_bias is 1; expected bool",
            "layers[0].linear.has_bias",
        ),
        ("layers[1]", 3, r"layers[1] is 3; expected Configurable.Config", "layers"),
        ('rules["embed"]', [1], r'rules["embed"][0] is 1; expected str', "rules"),
    ],
)
def test_a_value_that_does_not_fit_is_told_with_its_path(
    path: str, value: Any, what: str, where: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        update_config(NET, {path: value})
    assert what in caught.value.what
    assert caught.value.where == where
    assert "test_edit.py" in str(caught.value.set_in)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("dmi", r"'dmi' matches nothing: the root \(Net.Config\) has no 'dmi'\n.*\n.*mean 'dim'"),
        ("layers[2].dim", r"layers \(tuple\) has no '\[2\]'"),
        ("layers.dim", r"layers \(tuple\) has no 'dim'"),
        ("dim.x", r"dim \(int\) has no 'x'\n.*\n.*dim contains nothing below it; stop the path"),
        ('rules["a"].x', r"rules \(immutabledict\) has no '\[\"a\"\]'"),
        ("", "the path is empty"),
        ("a..b", r"'a..b' is not a path: cannot read '..b'|cannot read"),
        ("layers[x]", r"'layers\[x\]' is not a path: cannot read '\[x\]'"),
        ("**.nothing.dim", r"'\*\*.nothing.dim' matches nothing in Net.Config"),
    ],
)
def test_a_path_that_leads_nowhere_is_told(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        update_config(NET, {path: 1})


def test_all_problems_of_an_update_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        update_config(NET, {"dmi": 1, "dim": "x", "rate": 0.5}, set_in="recipe.yaml")
    assert caught.value.what.startswith("2 changes do not fit:")
    assert "'dmi' matches nothing" in str(caught.value)
    assert "dim is 'x'" in str(caught.value)
    assert caught.value.set_in == "recipe.yaml"


def test_a_replacement_that_is_no_config_or_does_not_fit_is_told() -> None:
    with pytest.raises(ConfigError, match=r"must be a config, got 3\n  where:  layers\[0\]"):
        replace_config(NET, FeedForward, lambda old: 3)
    with pytest.raises(ConfigError, match=r"give an instance: Linear.Config\(...\)"):
        replace_config(NET, FeedForward, Linear)
    cfg = evolve(NET, extra=FeedForward.Config())
    with pytest.raises(ConfigError, match=r"extra is Linear.Config.*\n  where:  extra"):
        replace_config(cfg, FeedForward, Linear.Config(), at="extra")
    with pytest.raises(ConfigError, match="a target is a class or a predicate, not 3"):
        find_config(NET, 3)


def test_overrides_are_read_by_the_type_of_the_field() -> None:
    texts = ["dim=7", "rate=1", "name=12", 'rules["x"]=("a","b")', "layers[*].activation=gelu"]
    result = apply_overrides(NET, texts)
    assert (result.dim, repr(result.rate), result.name) == (7, "1.0", "12")
    assert result.rules["x"] == ("a", "b")
    assert {layer.activation for layer in result.layers} == {"gelu"}
    assert str(origin_of(result, "rate")) == "--set rate=1"
    assert apply_overrides(result, ["extra=none", "anything=[1, 'a']"]).anything == (1, "a")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dim", r"expected PATH=VALUE, got 'dim'\n  hint:   --set dim=VALUE"),
        ("dim=twelve", r"expected int, got 'twelve'\n  where:  dim\n  hint:   --set dim=4"),
        ("layers[0].activation=x", r"expected Literal\['silu', 'gelu'\], got 'x'"),
        ("layers[0]=1", r"set the fields inside of it, --set layers\[0\].FIELD=VALUE"),
        ("dimm=1", r"did you mean 'dim'\?"),
        ("__class__=1", r"has no '__class__'"),
        ("dim=__import__('os').system('true')", r"expected int, got"),
    ],
)
def test_an_override_that_does_not_fit_says_what_to_type(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        apply_overrides(NET, [text])
    assert caught.value.set_in == "--set"


def a_recipe() -> Any:
    return evolve(Net.Config(dim=4), rate=0.5)


def test_every_value_remembers_where_it_was_set() -> None:
    cfg = update_config(a_recipe(), {"layers[0].hidden_dim": 3}, set_in="big.yaml")
    assert set(origins_of(cfg)) == {"dim", "rate", "layers"}
    assert "a_recipe" in str(origin_of(cfg, "rate"))
    assert str(origin_of(cfg, "layers[0].hidden_dim")) == "big.yaml"
    assert "config_trees" in str(origin_of(cfg, "layers[1].hidden_dim"))
    assert origin_of(cfg, "name") is None
    assert "rate: 0.5                 # a_recipe" in render_config(cfg, origins=True)
    with pytest.raises(ConfigError, match="is a glob"):
        origin_of(cfg, "**")


def test_origins_are_no_part_of_the_value() -> None:
    assert update_config(NET, {"rate": 0.5}, set_in="a") == update_config(
        NET, {"rate": 0.5}, set_in="b"
    )


def test_a_golden_file_holds_until_the_config_changes(tmp_path: Any) -> None:
    file = tmp_path / "golden" / "net.txt"
    with pytest.raises(ConfigError, match=r"there is no golden file for Net.Config"):
        check_golden(NET, file)
    check_golden(NET, file, update=True)
    check_golden(Net.Config(dim=4), file)
    with pytest.raises(
        ConfigError, match=r"not what its golden file says:(\n.*)*-dim: 4\n\+dim: 5"
    ):
        check_golden(evolve(NET, dim=5), file)
    assert file.read_text() == render_config(NET) == "Net\ndim: 4\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rate=1e-400", "1e-400 is too small for a float, which would make it 0"),
        ("rate=-1e400", "1e400 is too large for a float"),
        ("anything=1e-400", "1e-400 is too small for a float"),
        ("anything={'a': [1, 2e999]}", "2e999 is too large for a float"),
        ("anything={'a': 1, 'b': 2, 'a': 3}", "the key 'a' is twice in one mapping"),
    ],
)
def test_an_override_that_python_would_read_in_part_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        apply_overrides(NET, [text])
    assert f"where:  {text.partition('=')[0]}" in str(caught.value)


def test_a_field_of_text_takes_a_number_that_no_float_holds() -> None:
    assert apply_overrides(NET, ["name=1e-400"]).name == "1e-400"
