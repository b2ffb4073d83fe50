"""Files that a stranger sent: a named error each, nothing imported, nothing run."""

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from config_trees import NET, Net
from hypothesis import given, settings
from hypothesis import strategies as st

from axcore.config import from_dict, from_json, from_yaml, is_config, to_dict, to_yaml
from axcore.errors import ConfigError
from axcore.experiments.named import read_config

GOOD = to_dict(NET)


def good(**changes: Any) -> dict[str, Any]:
    return {**GOOD, **changes}


CYCLE: dict[str, Any] = {}
CYCLE["a"] = [CYCLE]
LONG_CYCLE = good(anything={"a": CYCLE})


def deep(levels: int) -> Any:
    data: Any = 0
    for _ in range(levels):
        data = [data]
    return data


def bomb() -> Any:
    data: Any = "lol"
    for _ in range(40):
        data = [data, data]
    return data


BAD_DICTS = {
    "unknown class": (good(type="x:Y"), r"no config class 'x:Y' is registered\n  where:  the root"),
    "class not registered": (good(type="pathlib:Path"), "no config class 'pathlib:Path' is regist"),
    "class of another module": (
        good(extra={"type": "antigravity:Config"}),
        r"no config class 'antigravity:Config' is registered\n  where:  extra",
    ),
    "not yet imported": (good(type="axcore.nowhere:X"), "no config class 'axcore.nowhere:X'"),
    "type is not text": (good(type=["x"]), r"type is \['x'\]; expected text"),
    "no type": ({"dim": 3}, r'not a config\n.*\n  hint:   add "type"'),
    "a list": ([GOOD], "the top level is a list, not a config"),
    "nothing": (None, "there is no config: nothing is written there"),
    "unknown field": (
        good(dmi=3, layers=[]),
        r"Net.Config has no field 'dmi'; did you mean 'dim'\?\n  where:  the root",
    ),
    "unknown field below": (
        good(layers=[{**GOOD["layers"][0], "hiden_dim": 3}]),
        r"no field 'hiden_dim'; did you mean 'hidden_dim'\?\n  where:  layers\[0\]",
    ),
    "wrong type": (good(dim="four"), r"dim is 'four'; expected int, got str"),
    "wrong type inside": (
        good(rules={"embed": [1]}),
        r'rules\["embed"\]\[0\] is 1; expected str, got int',
    ),
    "config in the wrong place": (good(extra=GOOD["layers"][0]["linear"]), r"extra is Linear.Con"),
    "cycle": (good(anything=CYCLE), "the data contains itself"),
    "cycle further in": (LONG_CYCLE, "the data contains itself"),
    "deep": (good(anything=deep(10_000)), "nested deeper than 100 levels"),
    "bomb": (good(anything=bomb()), "more than 200000 values, aliases followed"),
    "key that is not text": (good(rules={1: []}), r"keys are text, got 1\n  where:  rules"),
    "function of another package": (
        good(fn={"function": "os:system"}),
        r"'os:system' is not a function that a config file may name\n  where:  fn",
    ),
    "call of another package": (
        good(anything={"call": "os:system", "fields": {"command": "true"}}),
        r"'os:system' is not a function that a config file may name",
    ),
    "function through a trusted package": (
        good(fn={"function": "optax:jax.numpy.save"}),
        "is not a function that a config file may name",
    ),
    "method of a function": (
        good(fn={"function": "optax:adamw.__globals__"}),
        "is not a function that a config file may name",
    ),
    "function of the core": (
        good(anything={"call": "axcore.config.render:check_golden"}),
        "is not a function that a config file may name",
    ),
    "call with other keys": (
        good(anything={"call": "optax:adamw", "learning_rate": 1}),
        "a call has `call` and `fields` only",
    ),
    "call with unknown argument": (
        good(anything={"call": "optax:adamw", "fields": {"lr": 1}}),
        "adamw has no field 'lr'",
    ),
    "fields that are not a mapping": (
        good(anything={"call": "optax:adamw", "fields": [1]}),
        r"fields is \[1\]; expected a mapping",
    ),
    "not a name": (good(type="axcore.config.__main__:X"), "no config class"),
}


@pytest.mark.parametrize(("data", "message"), BAD_DICTS.values(), ids=BAD_DICTS)
def test_bad_data_is_refused_by_name(data: Any, message: str) -> None:
    imported = set(sys.modules)
    with pytest.raises(ConfigError, match=message) as caught:
        from_dict(data, set_in="mail.json")
    assert caught.value.set_in == "mail.json"
    assert set(sys.modules) == imported


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON: Expecting property name"),
        ('{"type": "a", "type": "b"}', "the key 'type' is twice in one mapping"),
        ("[" * 10_000 + "]" * 10_000, "nested deeper than 100 levels"),
        ('{"a":' * 10_000 + "1" + "}" * 10_000, "nested deeper than 100 levels"),
        ("1" * 10_000, "not JSON: a number has 10,000 characters"),
        (json.dumps(good(rate=float("nan"))), "rate is nan; expected a number"),
        ("", "there is no config"),
    ],
)
def test_bad_json_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        from_json(text, set_in="mail.json")
    assert caught.value.set_in == "mail.json"


def test_bad_yaml_is_refused_by_name(tmp_path: Path) -> None:
    made = tmp_path / "made"
    shout = f"!!python/object/apply:os.system ['touch {made}']"
    bad = {
        shout: "not plain YAML: could not determine a constructor",
        f"anything: {shout}": "could not determine a constructor",
        "!!python/name:os.system": "could not determine a constructor",
        "a: 1\na: 2": r"the key 'a' is twice in one mapping\n  where:  line 2",
        "a: {b: 1, 'b': 2}": r"the key 'b' is twice in one mapping\n  where:  line 1",
        "1: 2": "keys are text, got '1'",
        "? [a]\n: 2": "keys are text, got ",
        "[" * 10_000 + "]" * 10_000: "nested deeper than 100 levels",
        "&a [*a]": "the data contains itself|not plain YAML",
        "a: [": "not plain YAML: while parsing",
        "a: *nowhere": "not plain YAML: found undefined alias",
        "\x00": "not plain YAML",
        "--- 1\n--- 2": "not plain YAML: expected a single document",
        "1" * 10_000: "not plain YAML: Exceeds the limit",
        "!!int x": "not plain YAML",
        "a: &a {x: 1}\nb: {<<: *a}": "not a config",
    }
    lines = ["l0: &l0 [x]", *(f"l{i}: &l{i} [*l{i - 1}, *l{i - 1}]" for i in range(1, 40))]
    bad["\n".join(lines)] = "more than 200000 values, aliases followed"
    for text, message in bad.items():
        with pytest.raises(ConfigError, match=message) as caught:
            from_yaml(text, set_in="mail.yaml")
        assert caught.value.set_in == "mail.yaml"
    assert not made.exists()


@pytest.mark.parametrize("load", [from_json, from_yaml])
def test_a_text_longer_than_any_config_is_refused_unread(load: Any) -> None:
    started = time.process_time()
    with pytest.raises(ConfigError, match="the text is longer than 1024 KiB"):
        load("a: [b, c]\n" * 5_000_000)
    assert time.process_time() - started < 30  # to read it takes minutes


def test_a_config_file_that_is_too_long_or_none_is_refused_unread(tmp_path: Path) -> None:
    long, fifo = tmp_path / "long.yaml", tmp_path / "fifo.yaml"
    with long.open("wb") as file:
        file.truncate(1 << 40)
    os.mkfifo(fifo)
    with pytest.raises(ConfigError, match="the text is longer than 1024 KiB"):
        read_config(long)
    with pytest.raises(ConfigError, match="it is not a regular file"):
        read_config(fifo)


def test_what_a_trusted_module_lacks_is_told() -> None:
    with pytest.raises(ConfigError, match=r"no config class 'axcore.config.edit:Nothing'"):
        from_dict({"type": "axcore.config.edit:Nothing"})


# -- Fuzz ----------------------------------------------------------------------------------------

keys = st.sampled_from(
    ["type", "call", "fields", "function", "required", "mapping", "dim", "layers", "rules", "rate"]
) | st.text(max_size=4)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.binary(max_size=3)
    | st.dates()
    | st.sampled_from(
        [
            "config_trees:Net.Config",
            "config_trees:Linear.Config",
            "config_trees:FeedForward.Config",
            "axcore.config.build:Configurable.Config",
            "optax:adamw",
            "optax._src.alias:sgd",
            "optax:__loader__",
            "os:system",
            "axcore:x",
            ":",
            "a:b:c",
        ]
    )
)
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys | leaves, inner, max_size=4),
    max_leaves=12,
)
mutated = st.builds(lambda key, value: {**GOOD, key: value}, st.sampled_from(sorted(GOOD)), trees)


def only_config_errors(load: Any, data: Any) -> None:
    with contextlib.suppress(ConfigError):
        assert is_config(load(data))


lines = st.sampled_from(to_yaml(NET).splitlines()) | st.text(max_size=12)
snippets = st.sampled_from(
    [
        "-",
        "  ",
        ": ",
        "{",
        "}",
        "[",
        "]",
        "&a ",
        "*a",
        "!!",
        "!!python/name:os.system",
        "|",
        "%",
        "#",
        "'",
        '"',
        "? ",
        "<<",
        "---",
        "\t",
        "0x",
        "1e",
        ".inf",
        "\x85",
        "~",
    ]
)
yaml_texts = st.builds(
    lambda parts, between: between.join(parts),
    st.lists(lines | snippets, max_size=8),
    st.sampled_from(["\n", "", " "]),
)


def corrupted(text: str) -> st.SearchStrategy[str]:
    """Returns a text with some characters replaced by others."""
    return st.builds(
        lambda at, noise, cut: text[:at] + noise + text[at + cut :],
        st.integers(0, len(text)),
        st.text(min_size=1, max_size=3),
        st.integers(0, 4),
    )


FUZZ = {
    "dicts": (from_dict, mutated | trees, 5000),
    "YAML": (from_yaml, yaml_texts, 2000),
    "corrupted YAML": (from_yaml, corrupted(to_yaml(NET)), 1500),
    "corrupted JSON": (from_json, corrupted(json.dumps(GOOD)), 1500),
}


@pytest.mark.parametrize("share", [0.03, pytest.param(1.0, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", FUZZ)
def test_fuzzed_input_gives_a_config_or_a_config_error(name: str, share: float) -> None:
    load, inputs, count = FUZZ[name]

    @given(inputs)
    @settings(max_examples=int(share * count))
    def fuzz(data: Any) -> None:
        only_config_errors(load, data)

    fuzz()


def test_the_good_data_that_the_fuzz_starts_from_loads() -> None:
    assert from_dict(GOOD) == from_yaml(to_yaml(NET)) == Net.Config(dim=4)
