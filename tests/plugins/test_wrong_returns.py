"""Whatever a plugin gives back wrongly, the error names the plugin, its record and its function."""

import json

import pytest
from click.testing import CliRunner

from axcore.aot.targets import compile_devices, compile_environment
from axcore.checkpoint.storage import open_storage
from axcore.cli.doctor import findings
from axcore.cli.experiments import experiments
from axcore.complexity.meter import why_not_in
from axcore.config import evolve
from axcore.errors import PluginError
from axcore.experiments.named import experiment
from axcore.experiments.tiny import tiny
from axcore.launch.process_info import engine_process_info
from axcore.modifiers import apply_modifier, with_changes, with_variant
from axcore.plugins import (
    AotTarget,
    CompilerOptions,
    DoctorCheck,
    Feature,
    Hardware,
    plugin_host,
    set_environment_flags,
    wanted_compiler_options,
)
from axcore.plugins.flags import present_family
from axcore.trainer.callbacks.events import Observers, RunFinished, named_observers
from axcore.trainer.callbacks.writers import Writers, find_writers

CODE = """
class Odd:
    def __init__(self, **values):
        pass

def three(*_):
    return 3

def numbers(*_):
    return {"--flag": 3, 4: None}

def raises(*_):
    raise ValueError("bad weather")
"""

CPU = Hardware.parse("cpu-1")


def of_core(name, record_type):
    (found,) = [one for one in plugin_host().records(record_type) if one.name == name]
    return found


def in_a_run(tmp_path):
    with Writers(find_writers(["odd"]), tmp_path, step=0):
        pass


CASES = {
    "experiment": (
        "experiments",
        'Experiment(name="odd", fn=Ref("axl_acme.code:three"), summary="")',
        lambda _: experiment("odd"),
        "axl_acme.code:three, the `fn` of experiment 'odd' of plugin 'axl-acme', returned 3; "
        "expected a Trainer.Config, got int",
    ),
    "modifier": (
        "modifiers",
        'Modifier(name="odd", config=Ref("axl_acme.code:Odd"), summary="")',
        lambda _: with_changes(tiny(), ["odd"], CPU),
        "axl_acme.code:Odd, the `config` of modifier 'odd' of plugin 'axl-acme', returned <",
    ),
    "layer variant": (
        "layer_variants",
        'LayerVariant(name="odd", config=Ref("axl_acme.code:three"), '
        'replaces=Ref("axcore.layers:RMSNorm"), summary="")',
        lambda _: with_variant(tiny(), "odd"),
        "axl_acme.code:three, the `config` of layer variant 'odd' of plugin 'axl-acme', returned 3",
    ),
    "data source": (
        "data_sources",
        'DataSource(name="odd", config=Ref("axl_acme.code:three"), summary="")',
        lambda _: with_changes(tiny(), ["odd"]),
        "the `config` of data source 'odd' of plugin 'axl-acme', returned 3; expected Source.Conf",
    ),
    "tokenizer": (
        "tokenizers",
        'DataTokenizer(name="odd", config=Ref("axl_acme.code:three"), summary="")',
        lambda _: with_changes(tiny(), ["odd"]),
        "the `config` of tokenizer 'odd' of plugin 'axl-acme', returned 3; expected Tokenizer.Conf",
    ),
    "quantization scheme": (
        "quantization_schemes",
        'QuantizationScheme(name="odd", config=Ref("axl_acme.code:three"), summary="")',
        lambda _: with_changes(tiny(), ["odd"]),
        "`config` of quantization scheme 'odd' of plugin 'axl-acme', returned 3; expected Dot.Conf",
    ),
    "metric writer": (
        "metric_writers",
        'MetricWriter(name="odd", fn=Ref("axl_acme.code:three"), summary="")',
        in_a_run,
        "the `fn` of metric writer 'odd' of plugin 'axl-acme', returned 3; expected a writer",
    ),
    "checkpoint storage": (
        "checkpoint_storages",
        'CheckpointStorage(name="odd", fn=Ref("axl_acme.code:three"), summary="")',
        lambda _: open_storage("odd://x"),
        "`fn` of checkpoint storage 'odd' of plugin 'axl-acme', returned 3; expected StepStorage",
    ),
    "launcher": (
        "launchers",
        'JobLauncher(name="odd", config=Ref("axl_acme.code:Odd"), '
        'process_info=Ref("axl_acme.code:three"), summary="")',
        lambda _: engine_process_info({}),
        "the `process_info` of launcher 'odd' of plugin 'axl-acme', returned 3; "
        "expected ProcessInfo or None, got int",
    ),
    "detection": (
        "hardware_families",
        'HardwareFamily(name="odd", hosts=(Hardware(family="odd"),), '
        'detect=Ref("axl_acme.code:three"), summary="")',
        lambda _: Hardware.detect(),
        "the `detect` of hardware family 'odd' of plugin 'axl-acme', returned 3; "
        "expected str or None, got int",
    ),
    "presence": (
        "hardware_families",
        'HardwareFamily(name="odd", hosts=(Hardware(family="odd"),), '
        'detect=Ref("axl_acme.code:three"), present=Ref("axl_acme.code:numbers"), summary="")',
        lambda _: present_family({}),
        "the `present` of hardware family 'odd' of plugin 'axl-acme', returned {",
    ),
    "flags": (
        "environment_flags",
        'EnvironmentFlags(name="odd", variable="ODD", fn=Ref("axl_acme.code:numbers"), summary="")',
        lambda _: set_environment_flags(CPU, {}),
        "the `fn` of environment flags 'odd' of plugin 'axl-acme', returned {'--flag': 3}; expec",
    ),
    "compiler options": (
        "compiler_options",
        'CompilerOptions(name="odd", fn=Ref("axl_acme.code:three"), summary="")',
        lambda _: wanted_compiler_options(CPU, [of_core("odd", CompilerOptions)]),
        "the `fn` of compiler options 'odd' of plugin 'axl-acme', returned 3; expected a mapping",
    ),
    "compile environment": (
        "aot_targets",
        'AotTarget(name="odd", environment=Ref("axl_acme.code:numbers"), summary="")',
        lambda _: compile_environment(of_core("odd", AotTarget), CPU),
        "`environment` of compile target 'odd' of plugin 'axl-acme', returned {'--flag': 3}; expec",
    ),
    "compile devices": (
        "aot_targets",
        'AotTarget(name="odd", devices=Ref("axl_acme.code:three"), summary="")',
        lambda _: compile_devices(of_core("odd", AotTarget), CPU),
        "the `devices` of compile target 'odd' of plugin 'axl-acme', returned 3; expected Sequence",
    ),
    "evidence": (
        "features",
        'Feature(name="odd", evidence=Ref("axl_acme.code:three"), summary="")',
        lambda _: why_not_in(of_core("odd", Feature), tiny(), CPU),
        "the `evidence` of feature 'odd' of plugin 'axl-acme', returned 3; expected str or None",
    ),
}


@pytest.fixture
def brought(make_dist):
    def bring(hook, record, code=CODE):
        body = f"from axcore.plugins import *\n@hook.{hook}\ndef {hook}():\n    yield {record}\n"
        make_dist("axl-acme", body, files={"code.py": code})
        assert plugin_host().plugin("axl-acme").trouble == ""

    return bring


@pytest.mark.parametrize("name", CASES)
def test_error_names_what_returned_what_and_how_to_run_without_it(brought, name, tmp_path):
    hook, record, use, text = CASES[name]
    brought(hook, record)
    with pytest.raises(PluginError) as raised:
        use(tmp_path)
    assert text in raised.value.what
    assert "set AXCORE_BLOCK=axl-acme" in (raised.value.hint or "")


def test_exception_of_a_plugin_keeps_its_type_and_gains_a_note(brought):
    brought("experiments", 'Experiment(name="odd", fn=Ref("axl_acme.code:raises"), summary="")')
    with pytest.raises(ValueError, match="bad weather") as raised:
        experiment("odd")
    (note,) = raised.value.__notes__
    assert note == (
        "in axl_acme.code:raises, the `fn` of experiment 'odd' of plugin 'axl-acme'; "
        "set AXCORE_BLOCK=axl-acme to run without it"
    )


def test_doctor_shows_whose_check_found_nothing_that_is_a_finding(brought):
    brought("doctor_checks", 'DoctorCheck(name="odd", fn=Ref("axl_acme.code:three"), summary="")')
    (found,) = findings(of_core("odd", DoctorCheck))
    assert found.level == "error"
    assert "axl_acme.code:three, the `fn` of doctor check 'odd' of plugin 'axl-acme'" in found.text
    assert "returned 3; expected an iterable of Finding" in found.text


def test_observer_that_is_none_is_switched_off_by_name(brought):
    brought("observers", 'RunObserver(name="odd", fn=Ref("axl_acme.code:three"), summary="")')
    tell = Observers(named_observers(["odd"]))
    with pytest.warns(UserWarning, match="'odd' of plugin 'axl-acme', returned 3; expected a func"):
        tell(RunFinished(step=1, is_complete=True))


CLASSES = """
import numpy as np
from axcore.config import config
from axcore.data import Document, Source, Tokenizer

class Odd(Source):
    @config
    class Config(Source.Config):
        how: str = ""

    def documents(self):
        if self.config.how == "none":
            return None
        return self.yielded()

    def yielded(self):
        yield Document("a", "text")
        if self.config.how == "raises":
            raise OSError("disk")
        yield "text"

    def describe(self):
        return "odd"

class Few(Tokenizer):
    @config
    class Config(Tokenizer.Config):
        answer: str = ""

    vocab_size, bos_id, eos_id, pad_id = 9, None, 1, 2

    def encode_many(self, texts):
        odd = {"none": [], "number": 3, "list": [[1, 2]]}
        odd |= {"large": [np.array([1, 9])], "negative": [np.array([-3, 1])]}
        return odd[self.config.answer]

    def decode(self, tokens):
        return ""

@config
class Shrug:
    def apply(self, cfg, hardware):
        return None

@config
class Part:
    def apply(self, cfg, hardware):
        return cfg.model

@config
class Stumbles:
    def apply(self, cfg, hardware):
        return cfg.nothing
"""


def test_source_tokenizer_and_modifier_are_named_with_their_plugin(brought):
    brought("ops", 'Op(name="odd", fn=Ref("a:b"), summary="")', CLASSES)
    from axl_acme.code import Few, Odd, Part, Shrug, Stumbles

    for how in ("", "none"):
        data = evolve(tiny().data, source=Odd.Config(how=how))
        with pytest.raises(
            PluginError, match=r"axl_acme.code:Odd.documents of plugin 'axl-acme' retur"
        ):
            data.build().summary()
    with pytest.raises(OSError, match="disk") as raised:
        evolve(data, source=Odd.Config(how="raises")).build().summary()
    assert "in axl_acme.code:Odd.documents of plugin 'axl-acme'; set" in raised.value.__notes__[0]
    for answer in ("none", "number", "list", "large", "negative"):
        with pytest.raises(
            PluginError, match=r"axl_acme.code:Few.encode_many of plugin 'axl-acme'"
        ):
            Few.Config(answer=answer).build().encode("text")
    with pytest.raises(
        PluginError, match=r"axl_acme.code:Shrug.apply of plugin 'axl-acme' returned"
    ):
        apply_modifier(tiny(), Shrug(), CPU, where="")
    with pytest.raises(PluginError, match=r"Part.apply .* expected the changed Trainer.Config"):
        apply_modifier(tiny(), Part(), CPU, where="")
    with pytest.raises(AttributeError, match="nothing") as stumbled:
        apply_modifier(tiny(), Stumbles(), CPU, where="")
    assert (
        "in axl_acme.code:Stumbles.apply of plugin 'axl-acme'; set" in stumbled.value.__notes__[0]
    )


def test_class_of_nobody_is_named_alone():
    class Shrug:
        def apply(self, cfg, hardware):
            return 3

    with pytest.raises(PluginError, match=r"returned 3; expected the changed Trainer.Config"):
        apply_modifier(tiny(), Shrug(), CPU, where="")


def test_broken_experiment_does_not_hide_the_sizes_of_the_others(make_dist, monkeypatch):
    make_dist(
        "axl-acme",
        "from axcore.plugins import Experiment, Ref, hook\n@hook.experiments\ndef experiments():\n"
        '    yield Experiment(name="odd", fn=Ref("axl_acme.code:three"), summary="")\n'
        '    yield Experiment(name="wet", fn=Ref("axl_acme.code:raises"), summary="")\n',
        files={"code.py": CODE},
    )
    monkeypatch.setenv("AXCORE_PLUGINS", "axl-acme")
    ran = CliRunner().invoke(experiments, ["--sizes"])
    assert ran.exit_code == PluginError.exit_code
    assert "855," in next(line for line in ran.stdout.splitlines() if line.startswith("tiny"))
    assert "broken" in next(line for line in ran.stdout.splitlines() if line.startswith("odd"))
    assert "'odd' of plugin 'axl-acme', returned 3; expected a Trainer.Config" in ran.stderr
    assert "ValueError: bad weather" in ran.stderr
    assert "the `fn` of experiment 'wet' of plugin 'axl-acme'" in ran.stderr
    sizes = json.loads(CliRunner().invoke(experiments, ["--sizes", "--json"]).stdout)
    assert {one["name"]: one["parameters"] for one in sizes}["odd"] is None
