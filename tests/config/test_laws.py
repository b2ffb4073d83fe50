"""Laws that every edit of a config obeys, whatever the config."""

import copy
from typing import Any

import pytest
from config_trees import NET, FeedForward, Linear, Net, feed_forwards, nets, scalars, values
from hypothesis import assume, given
from hypothesis import strategies as st

from axcore.config import (
    REQUIRED,
    Configurable,
    apply_overrides,
    diff_config,
    evolve,
    find_config,
    format_diff,
    is_config,
    map_config,
    render_config,
    replace_config,
    to_json,
    update_config,
    walk,
)
from axcore.config.paths import Key, Path, format_path, matches, parse_pattern

paths = st.lists(
    st.from_regex(r"[A-Za-z][A-Za-z0-9_]*", fullmatch=True)
    | st.integers(0, 99)
    | st.text(max_size=6).map(Key),
    min_size=1,
    max_size=5,
).filter(lambda steps: type(steps[0]) is str)


def snapshot(cfg: Any) -> tuple[str, str, int]:
    return to_json(cfg), render_config(cfg), hash(cfg)


def all_paths(cfg: Any) -> list[str]:
    return [format_path(path) for path, _ in walk(cfg) if path]


def value_at(cfg: Any, path: str) -> Any:
    return {format_path(steps): value for steps, value in walk(cfg)}[path]


@given(paths)
def test_a_path_is_read_as_it_is_written(path: Path) -> None:
    steps = tuple(path)
    pattern = parse_pattern(format_path(steps))
    assert tuple(pattern) == steps
    assert [type(step) for step in pattern] == [type(step) for step in steps]
    assert matches(pattern, steps)
    assert matches(parse_pattern("**"), steps)


@given(nets)
def test_replacing_nodes_by_themselves_is_the_identity(cfg: Any) -> None:
    assert replace_config(cfg, Configurable, lambda node: node) is cfg
    assert map_config(cfg, lambda node: node) is cfg
    assert evolve(cfg) == cfg


@given(nets, st.data())
def test_setting_a_value_to_itself_is_the_identity(cfg: Any, data: Any) -> None:
    path = data.draw(st.sampled_from(all_paths(cfg)))
    assert update_config(cfg, {path: value_at(cfg, path)}) == cfg


@given(nets, nets)
def test_update_then_diff_shows_exactly_the_update(before: Any, after: Any) -> None:
    changes = diff_config(before, after)
    assert (changes == ()) == (before == after)
    same_places = [c for c in changes if "ABSENT" not in (repr(c.before), repr(c.after))]
    updated = update_config(before, {change.path: change.after for change in same_places})
    assert diff_config(before, updated) == tuple(same_places)


@given(nets, scalars, scalars)
def test_one_update_is_one_change(cfg: Any, old: Any, new: Any) -> None:
    cfg = evolve(cfg, anything=old)
    updated = update_config(cfg, {"anything": new})
    old, new = cfg.anything, updated.anything
    is_same = type(old) is type(new) and old == new
    assert diff_config(cfg, updated) == (() if is_same else (("anything", old, new),))


@given(nets, feed_forwards)
def test_replacing_never_touches_a_sibling(cfg: Any, new: Any) -> None:
    at = "layers[0]"
    assume(bool(cfg.layers))
    replaced = replace_config(cfg, Configurable, new, at=at)
    for path in all_paths(cfg):
        if path != "layers" and not path.startswith(at):
            assert value_at(replaced, path) is value_at(cfg, path)


@given(nets, nets, values)
def test_no_function_changes_its_input(cfg: Any, other: Any, value: Any) -> None:
    before, kept = snapshot(cfg), copy.deepcopy(value)
    changes = {"anything": value, "**.linear.has_bias": True}
    first = [evolve(cfg, anything=value), update_config(cfg, {"anything": value})]
    replace_config(cfg, Linear, Linear.Config(has_bias=True), missing_ok=True)
    replace_config(cfg, FeedForward, lambda old: Linear.Config(), missing_ok=True, at="**.parts[*]")
    map_config(cfg, lambda node: evolve(node))
    find_config(cfg, Linear)
    diff_config(cfg, other)
    apply_overrides(cfg, ["name=x"])
    if find_config(cfg, Linear) and find_config(cfg, FeedForward):
        update_config(cfg, changes)
    assert snapshot(cfg) == before
    assert value == kept
    assert first[0] == first[1]


@given(nets)
def test_find_reports_every_node_at_its_path(cfg: Any) -> None:
    found = find_config(cfg, Configurable)
    assert [node for _, node in found] == [node for _, node in walk(cfg) if is_config(node)]
    assert all(value_at(cfg, path) is node for path, node in found)


@given(nets)
def test_rendering_says_all_that_differs_from_the_defaults(cfg: Any) -> None:
    lines = dict(line.split(": ", 1) for line in render_config(cfg).splitlines()[1:])
    default = Net.Config()
    assert ("rate" in lines) == (cfg.rate != default.rate)
    assert ("layers[0]" in lines) == bool(cfg.layers and cfg.layers != default.layers)
    everything = render_config(cfg, fold_defaults=False)
    assert everything.count("\n") > len(lines)


@given(nets, nets)
def test_rendering_and_equality_agree(one: Any, two: Any) -> None:
    assert (render_config(one) == render_config(two)) == (one == two)


def test_diff_reads_as_text() -> None:
    after = update_config(NET, {"dim": 5, "layers[1]": Linear.Config(), 'rules["z"]': ["q"]})
    assert format_diff(diff_config(NET, after)) == (
        "- dim: 4\n"
        "+ dim: 5\n"
        "+ rules[\"z\"]: ('q',)\n"
        "- layers[1]: FeedForward\n"
        "- layers[1].hidden_dim: 16\n"
        "+ layers[1]: Linear\n"
    )


def test_diff_tells_classes_of_one_name_apart() -> None:
    def a_linear() -> Any:
        class Linear(Configurable):
            pass

        return Linear.Config()

    text = format_diff(diff_config(NET, evolve(NET, anything=Linear.Config())))
    assert "+ anything: Linear\n" in text
    text = format_diff(
        diff_config(evolve(NET, anything=Linear.Config()), evolve(NET, anything=a_linear()))
    )
    assert "- anything: config_trees:Linear.Config\n" in text
    assert "a_linear.<locals>.Linear.Config\n" in text


@pytest.mark.parametrize("target", [FeedForward, FeedForward.Config])
def test_replacement_takes_required_fields_from_the_node_it_replaces(target: Any) -> None:
    cfg = update_config(NET, {"layers[*].dim": 7})
    new = replace_config(cfg, target, FeedForward.Config(activation="gelu"))
    assert [layer.dim for layer in new.layers] == [7, 7]
    assert [layer.hidden_dim for layer in new.layers] == [8, 16]
    assert {layer.activation for layer in new.layers} == {"gelu"}


def test_replacement_of_children_comes_before_that_of_their_parents() -> None:
    seen = []

    def note(node: Any) -> Any:
        seen.append(type(node).__qualname__)
        return node

    map_config(FeedForward.Config(), note)
    assert seen == ["Linear.Config", "FeedForward.Config"]


def test_glob_updates_set_outer_matches_last() -> None:
    inner = FeedForward.Config(hidden_dim=1, linear=FeedForward.Config(hidden_dim=2))
    cfg = evolve(NET, layers=[inner])
    new = Linear.Config(has_bias=True)
    assert update_config(cfg, {"**.linear": new}).layers[0].linear == new


def test_required_is_neither_true_nor_false_nor_a_number() -> None:
    for use in (bool, int, float, len, iter, lambda r: r + 1, lambda r: 2 * r, lambda r: r < 1):
        with pytest.raises(ValueError, match="REQUIRED field was used before"):
            use(REQUIRED)
