"""A config that is saved and loaded is the config that was saved."""

import copy
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import optax
import pytest
from config_trees import NET, FeedForward, Net, nets, values
from hypothesis import given
from hypothesis.strategies import characters, text

from axcore.config import (
    REQUIRED,
    Configurable,
    config,
    config_for,
    digest,
    evolve,
    from_dict,
    from_json,
    from_yaml,
    render_config,
    to_dict,
    to_json,
    to_yaml,
)
from axcore.config.json_files import read_json
from axcore.errors import ConfigError
from axcore.experiments.named import read_config

TRIPS = {
    "dict": lambda cfg: from_dict(to_dict(cfg)),
    "json": lambda cfg: from_json(to_json(cfg)),
    "yaml": lambda cfg: from_yaml(to_yaml(cfg)),
    "pickle": lambda cfg: pickle.loads(pickle.dumps(cfg)),
    "copy": copy.deepcopy,
}


def assert_same(cfg: Any, other: Any) -> None:
    assert other == cfg
    assert hash(other) == hash(cfg)
    assert render_config(other) == render_config(cfg)
    assert digest(other) == digest(cfg)
    assert repr(other) == repr(cfg)


@pytest.mark.parametrize("trip", TRIPS.values(), ids=TRIPS)
@given(nets)
def test_round_trip_is_exact(trip: Any, cfg: Any) -> None:
    assert_same(cfg, trip(cfg))


@pytest.mark.parametrize("trip", TRIPS.values(), ids=TRIPS)
@given(values)
def test_round_trip_keeps_any_plain_value_and_its_type(trip: Any, value: Any) -> None:
    kept = trip(Net.Config(anything=value)).anything
    assert repr(kept) == repr(Net.Config(anything=value).anything)


@pytest.mark.parametrize("trip", TRIPS.values(), ids=TRIPS)
@pytest.mark.parametrize(
    "value",
    [
        float("inf"),
        float("-inf"),
        1e-320,
        0.1 + 0.2,
        2**2000,
        -(2**63),
        "\x00\x85\u2028\ufeff\U0001f600",
        "no",
        "1e3",
        "0o17",
        "2026-11-21",
        "1:30",
        "<<",
        "=",
        "~",
        " lead and trail ",
        "two\nlines\n",
        {"type": "os:system", "call": "x", "fields": {}},
        {"mapping": {"required": True}},
        {"required": True},
        {"function": "os:system"},
        {"no": 1, "on": 2, "1": 3, "": 4},
    ],
    ids=ascii,
)
def test_round_trip_keeps_awkward_values(trip: Any, value: Any) -> None:
    cfg = Net.Config(anything=value)
    assert_same(cfg, trip(cfg))


@pytest.mark.parametrize("trip", TRIPS.values(), ids=TRIPS)
@given(text(characters(exclude_categories=["Cs"])))
def test_round_trip_keeps_text_of_any_characters(trip: Any, value: str) -> None:
    cfg = Net.Config(name=value, anything={value: f"a{value}b\n{value}"})
    assert_same(cfg, trip(cfg))


@pytest.mark.parametrize("trip", [TRIPS["json"], TRIPS["yaml"]], ids=["json", "yaml"])
def test_round_trip_keeps_each_character_between_others(trip: Any) -> None:
    # Few of those further up: what YAML treats by itself is below, and parsing takes a while.
    points = [*range(0x2100), *range(0x2100, 0xD800, 64), *range(0xE000, 0x110000, 4096)]
    cfg = Net.Config(anything=tuple(f"a{chr(one)}b" for one in [*points, 0xFEFF, 0xFFFE, 0xFFFF]))
    assert trip(cfg) == cfg


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}, ("a", "b\udc80")], ids=ascii)
def test_half_of_a_surrogate_pair_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^anything.* is .*expected text that UTF-8 can hold"):
        Net.Config(anything=value)


@pytest.mark.parametrize("text", ["1e-400", "-0.1e-999", "1e400", "-2.5E+309"])
@pytest.mark.parametrize("read", [from_json, from_yaml], ids=["json", "yaml"])
def test_a_number_that_no_float_holds_is_refused(read: Any, text: str) -> None:
    write = to_json if read is from_json else to_yaml
    changed = write(evolve(NET, rate=0.25)).replace("0.25", text)
    with pytest.raises(ConfigError, match=rf"{re.escape(text)} is too (small|large) for a float"):
        read(changed)


def test_round_trip_keeps_fields_that_are_named_like_tags() -> None:
    class Odd(Configurable):
        @config
        class Config(Configurable.Config):
            type: str = "a"
            fields: Any = None
            call: int = 1
            mapping: Any = None

    for fields in ({"type": "b"}, {"fields": {"fields": 3}}, {"mapping": {"type": 1}}):
        cfg = Net.Config(anything=Odd.Config(**fields))
        for trip in (TRIPS["dict"], TRIPS["json"], TRIPS["yaml"]):
            assert_same(cfg, trip(cfg))


def test_round_trip_keeps_calls_of_other_libraries() -> None:
    call = config_for(optax.adamw, learning_rate=config_for(optax.constant_schedule, value=0.1))
    cfg = Net.Config(anything=call, fn=optax.sgd)
    for trip in TRIPS.values():
        assert_same(cfg, trip(cfg))
    assert to_dict(call)["call"] == "optax:adamw"
    assert set(to_dict(call)["fields"]) == {"learning_rate"}


def test_required_is_kept_as_such() -> None:
    for trip in TRIPS.values():
        assert trip(Net.Config()).dim is REQUIRED


@pytest.mark.slow
def test_hash_survives_a_new_process_with_other_string_hashes() -> None:
    code = (
        "import pickle, sys; import config_trees as t\n"
        "cfg = pickle.loads(sys.stdin.buffer.read()); assert hash(cfg) == hash(t.NET); "
        "assert {cfg: 1}[t.NET]"
    )
    hash(NET)
    path = ":".join(sys.path)
    subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(NET),
        check=True,
        env={"PYTHONPATH": path, "PYTHONHASHSEED": "7"},
    )


def test_a_lambda_cannot_be_saved_and_the_error_says_where() -> None:
    cfg = Net.Config(parts={"a": FeedForward.Config()}, fn=lambda: 0)
    with pytest.raises(ConfigError, match=r"cannot be named as module:name\n  where:  fn"):
        to_dict(cfg)


def test_what_nests_too_deep_to_load_is_not_saved() -> None:
    value: Any = ()
    for _ in range(150):
        value = (value,)
    with pytest.raises(ConfigError, match=r"nested deeper than 100 levels"):
        to_dict(Net.Config(anything=value))


def test_equal_mappings_are_alike_whatever_their_order() -> None:
    one, two = Net.Config(rules={"a": [], "b": []}), Net.Config(rules={"b": [], "a": []})
    assert_same(one, two)
    assert list(one.rules) == list(two.rules) == ["a", "b"]
    assert to_json(one) == to_json(two)


def test_a_file_that_says_numbers_as_yaml_1_2_does_is_read_so() -> None:
    text = to_yaml(NET).replace("rate: 0.0", "rate: 1e-3").replace("name: net", "name: no")
    assert from_yaml(text) == evolve(NET, rate=0.001, name="no")


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_a_byte_order_mark_is_no_part_of_a_config_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"net.{suffix}"
    path.write_text({"json": to_json, "yaml": to_yaml}[suffix](NET), encoding="utf-8-sig")
    assert read_config(path) == NET


def test_a_json_file_of_others_has_each_key_once(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": 1}', encoding="utf-8-sig")
    assert read_json(path, "config", error=ConfigError) == {"a": 1}
    path.write_text('{"a": 1, "b": {"c": 1, "c": 2}}')
    with pytest.raises(ConfigError, match="the key 'c' is twice in one mapping"):
        read_json(path, "config", error=ConfigError)
