"""Changes by name: modifiers, layer variants, data sources, tokenizers."""

import pytest

from axcore.config import config, find_config, from_json, update_config
from axcore.data import Data, JsonLines
from axcore.errors import ConfigError, PluginError
from axcore.experiments.tiny import tiny
from axcore.modifiers import RematModifier, apply_modifier, with_changes
from axcore.modifiers.named import parse_change
from axcore.plugins import Hardware, plugin_host

CPU = Hardware.parse("cpu-8")


def test_changes_are_made_in_order():
    cfg = with_changes(tiny(), ["accumulate", "json_lines", "accumulate"], CPU)
    assert cfg.num_micro_batches == 4 * tiny().num_micro_batches
    assert isinstance(cfg.data.source, JsonLines.Config)


def test_field_that_a_change_leaves_open_is_asked_for_with_its_path():
    cfg = with_changes(Data.Config(seq_len=8, batch_size=2), ["json_lines"])
    with pytest.raises(ConfigError, match=r"source\.folder"):
        cfg.build()
    assert update_config(cfg, {"source.folder": "texts"}).build().source.config.folder == "texts"


def test_unknown_change_says_what_is_near():
    with pytest.raises(PluginError, match="there is no change 'jsonlines'; did you mean 'json_l"):
        with_changes(tiny(), ["jsonlines"])


def test_modifier_without_hardware_is_refused():
    with pytest.raises(ConfigError, match="modifier 'accumulate' changes configs for some hard"):
        with_changes(tiny(), ["accumulate"])


def test_change_of_something_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="no Source"):
        with_changes(tiny().learner, ["text_files"])


def test_name_of_two_things_is_refused(installed, source, monkeypatch):
    body = '@hook.{}s\ndef {}s():\n    yield {}(name="twin", config=Ref("a:b"), summary="")'
    installed.add("axl-a", source(body.format(*("modifier",) * 2, "Modifier")))
    installed.add("axl-b", source(body.format(*("tokenizer",) * 2, "DataTokenizer")))
    monkeypatch.setattr("axcore.modifiers.named.plugin_host", installed.host)
    with pytest.raises(PluginError, match="'twin' is the name of modifier of axl-a and tokenizer"):
        with_changes(tiny(), ["twin"], CPU)


@config
class Nothing:
    is_idempotent: bool = False

    def apply(self, cfg, hardware):
        return cfg


def test_modifier_that_changes_nothing_is_refused_unless_it_says_that_it_may():
    with pytest.raises(ConfigError, match="changes nothing"):
        apply_modifier(tiny(), Nothing(), CPU, where="mesh rule 'cpu-*'")
    assert apply_modifier(tiny(), Nothing(is_idempotent=True), CPU, where="") == tiny()


def test_config_file_may_name_config_classes_of_loaded_plugins(installed, source):
    text = '{"type": "axl_letters.letters:JsonLines.Config", "folder": "x"}'
    body = "from axcore.config import config\nfrom axcore.data import Source\n"
    body += "class JsonLines(Source):\n    @config\n    class Config(Source.Config):\n"
    body += "        folder: str\n    def documents(self): yield\n    def describe(self): return ''"
    installed.add("axl-letters", files={"letters.py": body})
    with pytest.raises(
        ConfigError, match=r"no config class 'axl_letters\.letters:JsonLines\.Config"
    ):
        from_json(text)
    installed.host()
    assert from_json(text).folder == "x"


def test_every_change_that_the_core_brings_can_be_found():
    for record in plugin_host().plugin("core").records:
        if record.kind in ("data source", "tokenizer"):
            assert with_changes(tiny(), [record.name]) is not None


def test_modifier_may_be_text_as_users_write_it():
    changed = apply_modifier(tiny(), "accumulate(factor=3)", CPU, where="mesh rule 'cpu-*'")
    assert changed.num_micro_batches == 3 * tiny().num_micro_batches


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
        ("remat(minimal)", "'minimal' is not field=value"),
        ("a(x=(1, 2)", r"\) is missing"),
        ("a(x='b)", "' is missing"),
        ("a(x=1])", "']' closes nothing"),
    ],
)
def test_text_that_is_no_change_says_why_and_how_to_write_one(text, reason):
    with pytest.raises(ConfigError, match=f"is not a change: .*{reason}") as error:
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
