"""Plugins whose records lead to something broken, which shows when somebody uses them."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from broken_plugins import HANG, BrokenPlugin, brings
from click.testing import CliRunner

import axcore.cli.doctor as doctor
from axcore.aot.targets import compile_devices, compile_environment
from axcore.checkpoint.storage import open_storage
from axcore.cli.main import error_text, group
from axcore.complexity.meter import why_not_in
from axcore.config import evolve
from axcore.evaluation.evaluate import find_task
from axcore.experiments.named import experiment
from axcore.experiments.tiny import tiny
from axcore.inference.detokenizer import TextStream
from axcore.interop.adapters import find_adapter_format
from axcore.interop.family import family_named
from axcore.launch.job import find_launcher, launcher_class
from axcore.launch.process_info import engine_process_info
from axcore.modifiers import with_changes
from axcore.plugins import (
    AotTarget,
    CompilerOptions,
    DoctorCheck,
    Feature,
    Hardware,
    ModelApi,
    plugin_host,
    set_environment_flags,
    wanted_compiler_options,
)
from axcore.plugins.flags import present_family
from axcore.serving.model_apis import endpoints_of
from axcore.testing.tiny import small_experiment, trainer_on
from axcore.trainer import RunFinished
from axcore.trainer.callbacks.events import Observers, named_observers
from axcore.trainer.callbacks.writers import Writers, find_writers
from axcore.trainer.step import TrainStep, task_of

CPU = Hardware.parse("cpu-1")

BASE = """
import sys, time

class Odd:
    def __init__(self, **values):
        pass

def three(*_):
    return 3

def numbers(*_):
    return {"--flag": 3, 4: None}

def raises(*_):
    raise ValueError("bad weather")

def ends(*_):
    raise SystemExit(0)
"""


def record(hook: str, of: str, field: str = "fn", value: str = "odd", more: str = "") -> str:
    return brings(hook, f'{of}(name="odd", {field}=Ref("axl_acme.code:{value}"), {more}summary="")')


def brought(kind: type, name: str = "odd") -> Any:
    (found,) = [one for one in plugin_host().records(kind) if one.key == name]
    return found


# -- Changes of configs ----------------------------------------------------------------------------


def modified() -> Any:
    return with_changes(tiny(), ["odd"], CPU)


MODIFIER = """
from axcore.config import config

@config
class Odd:
    def apply(self, cfg, hardware):
        {}
"""


def _modifier(what: str, names: str, body: str) -> BrokenPlugin:
    plugin = record("modifiers", "Modifier", "config", "Odd")
    return BrokenPlugin("Modifiers", what, names, plugin, modified, MODIFIER.format(body))


def _by_value(
    group: str, hook: str, of: str, meet: Callable[[], Any], field: str = "fn", names: str = ""
) -> list[BrokenPlugin]:
    """Returns what goes wrong with any function in a record: its value, its errors, its end."""
    names = names or f"`{field}` of "
    return [
        BrokenPlugin(group, what, names, record(hook, of, field, value), meet, BASE)
        for what, value in (
            (f"The `{field}` returns a number", "three"),
            (f"The `{field}` raises", "raises"),
            (f"The `{field}` ends the process", "ends"),
        )
    ]


LAYER = """
import jax.numpy as jnp
from axcore.config import config
from axcore.layers import RMSNorm

class Odd(RMSNorm):
    @config
    class Config(RMSNorm.Config):
        pass

    def forward(self, x):
        {}
"""


def small(**changes: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return evolve(small_experiment(Path(folder)), **changes)


def traced(cfg: Any) -> None:
    """Traces the step of a config, as compiling it does."""
    step = TrainStep(task_of(cfg), cfg.learner.build(total_steps=2))
    names = ("tokens", "targets", "positions", "loss_weights")
    batch = {name: jax.ShapeDtypeStruct((2, 8), jnp.int32) for name in names}
    batch["loss_weights"] = jax.ShapeDtypeStruct((2, 8), jnp.float32)
    jax.eval_shape(step, step.abstract_state(), batch)


def _layer(what: str, body: str) -> BrokenPlugin:
    plugin = record(
        "layer_variants",
        "LayerVariant",
        "config",
        "Odd.Config",
        'replaces=Ref("axcore.layers:RMSNorm"), ',
    )
    meet = lambda: traced(with_changes(small(), ["odd"]))  # noqa: E731
    names = "axl_acme.code:Odd of plugin"
    return BrokenPlugin("Layer variants", what, names, plugin, meet, LAYER.format(body))


def _variant(what: str, names: str, value: str, replaces: str, code: str = BASE) -> BrokenPlugin:
    plugin = record(
        "layer_variants", "LayerVariant", "config", value, f'replaces=Ref("{replaces}"), '
    )
    return BrokenPlugin("Layer variants", what, names, plugin, modified, code)


NORM = "axcore.layers:RMSNorm"


def _of_two_classes(first: str, second: str = NORM) -> str:
    both = ", ".join(f'"{one}": Ref("axl_acme.code:three")' for one in (first, second))
    return brings("layer_variants", f'LayerVariant(name="odd", replaces={{{both}}}, summary="")')


CHANGES = [
    *_by_value("Experiments", "experiments", "Experiment", lambda: experiment("odd")),
    *_by_value("Modifiers", "modifiers", "Modifier", modified, "config"),
    _modifier("`apply` returns None", "Odd.apply", "return None"),
    _modifier("`apply` returns a part of the config", "Odd.apply", "return cfg.model"),
    _modifier("`apply` raises", "Odd.apply", "raise KeyError('decoder')"),
    _modifier("`apply` ends the process", "Odd.apply", "raise SystemExit(0)"),
    _modifier("`apply` changes nothing", "Odd()", "return cfg"),
    BrokenPlugin(
        "Modifiers",
        "The config is not a modifier",
        "Odd()",
        record("modifiers", "Modifier", "config", "Odd"),
        modified,
        "from axcore.config import config\n@config\nclass Odd:\n    pass\n",
    ),
    *_by_value(
        "Quantization schemes", "quantization_schemes", "QuantizationScheme", modified, "config"
    ),
    _variant("The `config` returns a number", "`config` of layer variant 'odd'", "three", NORM),
    _variant("The `config` raises", "`config` of layer variant 'odd'", "raises", NORM),
    _variant(
        "`replaces` is not a class",
        "`replaces` of layer variant 'odd'",
        "three",
        "axl_acme.code:three",
    ),
    _variant(
        "Nothing in the config is replaced",
        "layer variant 'odd'",
        "three",
        "axcore.layers:LayerNorm",
    ),
    BrokenPlugin(
        "Layer variants",
        "One of two classes is not in the config",
        "layer variant 'odd'",
        _of_two_classes("axcore.layers:LayerNorm"),
        modified,
        BASE,
    ),
    BrokenPlugin(
        "Layer variants",
        "A node is of both classes",
        "layer variant 'odd'",
        _of_two_classes("axcore.layers:Residual", "axcore.layers:PreNorm"),
        modified,
        BASE,
    ),
    _layer("The layer returns None", "return None"),
    _layer("The layer returns another shape", "return jnp.zeros((3, 5, 7), x.dtype)"),
    _layer("The layer raises", "raise ValueError('bad weather')"),
    _layer("The layer reads a parameter that it lacks", "return x * self.weight_of_mine"),
]

# -- Data ------------------------------------------------------------------------------------------

SOURCE = """
import sys, time
from axcore.config import config
from axcore.data import Document, Source

class Odd(Source):
    @config
    class Config(Source.Config):
        pass

    def documents(self):
        {}

    def describe(self):
        return {}
"""


def _source(what: str, names: str, body: str, described: str = "'odd'") -> BrokenPlugin:
    plugin = record("data_sources", "DataSource", "config", "Odd.Config")
    code = SOURCE.format(body, described)
    meet = lambda: str(with_changes(tiny(), ["odd"]).data.build().summary())  # noqa: E731
    return BrokenPlugin("Data sources", what, names, plugin, meet, code)


TOKENIZER = """
import numpy as np
from axcore.config import config
from axcore.data import Tokenizer

class Odd(Tokenizer):
    @config
    class Config(Tokenizer.Config):
        pass

    vocab_size, bos_id, eos_id, pad_id = {}

    def encode_many(self, texts):
        {}

    def decode(self, tokens):
        {}
"""


def _tokenizer(
    what: str,
    names: str,
    encode: str = "return [np.array([1])] * len(texts)",
    decode: str = "return ''",
    numbers: str = "9, None, 1, 2",
) -> BrokenPlugin:
    def meet() -> Any:
        made = with_changes(small(), ["odd"]).data.tokenizer.build()
        made.encode_documents(["text"])
        return repr(TextStream(made).push([1]))

    plugin = record("tokenizers", "DataTokenizer", "config", "Odd.Config")
    code = TOKENIZER.format(numbers, encode, decode)
    return BrokenPlugin("Tokenizers", what, names, plugin, meet, code)


TRANSFORM = """
from axcore.config import config
from axcore.data import Transform

class Odd(Transform):
    @config
    class Config(Transform.Config):
        pass

    def apply(self, document, tools):
        {}
"""


def _transform(what: str, body: str) -> BrokenPlugin:
    def meet() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            return str(with_changes(small_experiment(Path(folder)), ["odd"]).data.build().summary())

    plugin = record("data_transforms", "DataTransform", "config", "Odd.Config")
    code = TRANSFORM.format(body)
    return BrokenPlugin("Transforms", what, "Odd.apply", plugin, meet, code)


DATA = [
    *_by_value("Data sources", "data_sources", "DataSource", modified, "config"),
    _source("It has no documents", "Odd.documents", "return None"),
    _source("It yields text", "Odd.documents", "yield 'text'"),
    _source(
        "It raises", "Odd.documents", "yield Document('a', 'b')\n        raise OSError('disk')"
    ),
    _source("It ends the process", "Odd.documents", "raise SystemExit(0)\n        yield"),
    _source("It is empty", "odd of plugin", "return iter(())"),
    _source(
        "It yields empty documents without end",
        "Odd.documents",
        "while True: yield Document('a', '')",
    ),
    _source(
        "It describes itself by a number", "Odd.describe", "yield Document('a', 'b' * 999)", "3"
    ),
    *_by_value("Tokenizers", "tokenizers", "DataTokenizer", modified, "config"),
    _tokenizer("It encodes to None", "Odd.encode_many", "return None"),
    _tokenizer("It encodes to lists", "Odd.encode_many", "return [[1]] * len(texts)"),
    _tokenizer("It encodes fewer texts", "Odd.encode_many", "return []"),
    _tokenizer(
        "It gives a number past its vocabulary", "Odd.encode_many", "return [np.array([1, 9])]"
    ),
    _tokenizer("It gives a number below 0", "Odd.encode_many", "return [np.array([-3, 1])]"),
    _tokenizer("It encodes to floats", "Odd.encode_many", "return [np.array([1.0])]"),
    _tokenizer("It raises", "Odd.encode_many", "raise OSError('disk')"),
    _tokenizer("It decodes to None", "Odd.decode", decode="return None"),
    _tokenizer("It raises when it decodes", "Odd.decode", decode="raise KeyError(3)"),
    _tokenizer("Its vocabulary has no size", "Odd.vocab_size", numbers="None, None, 1, 2"),
    _tokenizer("Its end is not in its vocabulary", "Odd.eos_id", numbers="9, None, 12, 2"),
    *_by_value("Transforms", "data_transforms", "DataTransform", modified, "config"),
    _transform("It returns None", "return None"),
    _transform("It returns text", "return document.text"),
    _transform("It raises", "raise UnicodeError('not text')"),
]

# -- Tasks -----------------------------------------------------------------------------------------

TASK = """
import jax.numpy as jnp
from axcore.config import config
from axcore.tasks import Task

class Odd(Task):
    @config
    class Config(Task.Config):
        pass

    def forward(self, batch):
        {}

    def metric_units(self):
        {}
"""


def _task(what: str, names: str, body: str, units: str = "return {}", meet=traced) -> BrokenPlugin:
    plugin = record("training_tasks", "TrainingTask", "config", "Odd.Config")
    code = TASK.format(body, units)
    return BrokenPlugin(
        "Training tasks", what, names, plugin, lambda: meet(with_changes(small(), ["odd"])), code
    )


def made(cfg: Any) -> None:
    trainer_on(cfg, 1)


TASKS = [
    *_by_value("Training tasks", "training_tasks", "TrainingTask", modified, "config"),
    _task("The loss is not a scalar", "Odd of plugin", "self.add_loss('odd', jnp.ones(3), 1)"),
    _task("It raises", "Odd of plugin", "raise KeyError('logits')"),
    _task("It adds no loss", "Odd of plugin", "return None"),
    _task(
        "`metric_units` returns None",
        "Odd.metric_units",
        "self.add_loss('odd', 1.0, 1)",
        "return None",
        meet=made,
    ),
    *_by_value(
        "Evaluation tasks", "evaluation_tasks", "EvaluationTask", lambda: find_task("odd"), "config"
    ),
]

# -- What watches and keeps runs -------------------------------------------------------------------

WRITER = """
import sys, time

class Odd:
    def __init__(self, directory, step):
        {}

    def write(self, step, split, metrics):
        {}

    def close(self):
        {}
"""


def written() -> None:
    with Writers(find_writers(["odd"])[1:], Path("runs/tiny"), step=6) as writers:
        writers.write(7, "train", {"loss": 1.0})


def _writer(
    what: str, opens: str = "pass", writes: str = "pass", closes: str = "pass"
) -> BrokenPlugin:
    plugin = record("metric_writers", "MetricWriter", value="Odd")
    code = WRITER.format(opens, writes, closes)
    return BrokenPlugin("Metric writers", what, "metric writer 'odd'", plugin, written, code)


OBSERVER = """
import sys, time

class Odd:
    def __call__(self{}):
        {}
"""


def observed() -> None:
    Observers(named_observers(["odd"]))(RunFinished(step=7, is_complete=True))


def _observer(what: str, body: str, parameters: str = ", event") -> BrokenPlugin:
    plugin = record("observers", "RunObserver", value="Odd")
    code = OBSERVER.format(parameters, body)
    return BrokenPlugin("Observers", what, "observer 'odd'", plugin, observed, code)


CHECK = "import sys, time\nfrom axcore.plugins import Finding\ndef odd():\n    {}\n"


def checked() -> str:
    (found,) = doctor.looked_at(brought(DoctorCheck), fixes=False)
    return doctor._shown(brought(DoctorCheck), found)


def _check(what: str, body: str) -> BrokenPlugin:
    plugin = record("doctor_checks", "DoctorCheck")
    return BrokenPlugin("Doctor checks", what, "odd", plugin, checked, CHECK.format(body))


OBSERVERS = [
    *_by_value(
        "Metric writers", "metric_writers", "MetricWriter", written, names="metric writer 'odd'"
    ),
    _writer("It cannot be opened", opens="raise OSError('no paper')"),
    _writer("It hangs when it is opened", opens=HANG),
    _writer("It raises", writes="raise OSError('disk')"),
    _writer("It hangs", writes=HANG),
    _writer("It ends the process", writes="raise SystemExit(0)"),
    _writer("It cannot be closed", closes="raise OSError('disk')"),
    _writer("It hangs when it is closed", closes=HANG),
    *_by_value("Observers", "observers", "RunObserver", observed, names="observer 'odd'"),
    _observer("It raises", "raise OSError('no socket')"),
    _observer("It hangs", HANG),
    _observer("It ends the process", "raise SystemExit(0)"),
    _observer("It takes no event", "pass", parameters=""),
    _check("It returns a number", "return 3"),
    _check("It returns text", "return ['all is well']"),
    _check("It raises", "raise OSError('no driver')"),
    _check("It hangs", HANG),
    _check("It ends the process", "raise SystemExit(0)"),
    _check("Its finding says no fix", "return [Finding('error', 'no driver')]"),
    _check("Its finding has no such level", "return [Finding('fatal', 'no driver', 'buy one')]"),
    *_by_value(
        "Checkpoint storages",
        "checkpoint_storages",
        "CheckpointStorage",
        lambda: open_storage("odd://x"),
    ),
]

STORAGE = """
from pathlib import Path
from axcore.checkpoint.steps import StepDirectories

class Odd(StepDirectories):
    def __init__(self, place):
        super().__init__(Path("runs/tiny/checkpoints").absolute())

    def {}
"""


def _storage(what: str, names: str, method: str, use: Callable[[Any], Any]) -> BrokenPlugin:
    plugin = record("checkpoint_storages", "CheckpointStorage", value="Odd")
    meet = lambda: use(open_storage("odd://x"))  # noqa: E731
    return BrokenPlugin("Checkpoint storages", what, names, plugin, meet, STORAGE.format(method))


STORAGES = [
    _storage(
        "It cannot list its steps",
        "Odd.committed",
        "committed(self): raise OSError('no network')",
        lambda storage: storage.committed(),
    ),
    _storage(
        "It cannot commit a step",
        "Odd.commit",
        "commit(self, step): raise OSError('quota')",
        lambda storage: storage.commit(3),
    ),
]

# -- Hardware, launchers, commands and files -------------------------------------------------------

FAMILY = (
    'HardwareFamily(name="odd", hosts=(Hardware(family="odd"),), '
    'detect=Ref("axl_acme.code:{}"), {}summary="")'
)
LAUNCHER = (
    'JobLauncher(name="odd", config=Ref("axl_acme.code:three"), '
    'process_info=Ref("axl_acme.code:{}"), summary="")'
)
TARGET = 'AotTarget(name="odd", {}=Ref("axl_acme.code:{}"), summary="")'
FLAGS = 'EnvironmentFlags(name="odd", variable="ODD", fn=Ref("axl_acme.code:{}"), summary="")'


def _hardware(
    group: str, what: str, names: str, hook: str, text: str, meet: Callable[[], Any]
) -> BrokenPlugin:
    return BrokenPlugin(group, what, names, brings(hook, text), meet, BASE)


def called(*arguments: str) -> str:
    ran = CliRunner().invoke(group, arguments)
    return ran.output if ran.exception is None else error_text(ran.exception)


def ruled() -> None:
    trainer_on(small(), 1)


RULE = 'MeshRule(match="cpu-1", mesh={}, modifiers=({}))'
REF = 'Experiment(name="odd", fn=Ref("{}"), summary="")'


def _ref(what: str, names: str, target: str, code: str = BASE) -> BrokenPlugin:
    plugin = brings("experiments", REF.format(target))
    return BrokenPlugin("References", what, names, plugin, lambda: experiment("odd"), code)


MACHINES = [
    _ref("It names no module", "axl_acme.cod:three", "axl_acme.cod:three"),
    _ref("It names nothing in the module", "axl_acme.code:thee", "axl_acme.code:thee"),
    _ref(
        "Its module needs what is not installed",
        "no_such_package",
        "axl_acme.code:three",
        "import no_such_package",
    ),
    _ref(
        "Its module raises",
        "axl_acme.code:three",
        "axl_acme.code:three",
        "raise ValueError('bad weather')",
    ),
    _hardware(
        "Hardware",
        "`detect` returns a number",
        "`detect` of",
        "hardware_families",
        FAMILY.format("three", ""),
        Hardware.detect,
    ),
    _hardware(
        "Hardware",
        "`detect` raises",
        "`detect` of",
        "hardware_families",
        FAMILY.format("raises", ""),
        Hardware.detect,
    ),
    _hardware(
        "Hardware",
        "`present` returns a dict",
        "`present` of",
        "hardware_families",
        FAMILY.format("three", 'present=Ref("axl_acme.code:numbers"), '),
        lambda: present_family({}),
    ),
    _hardware(
        "Hardware",
        "Flags are not text",
        "`fn` of",
        "environment_flags",
        FLAGS.format("numbers"),
        lambda: set_environment_flags(CPU, {}),
    ),
    _hardware(
        "Hardware",
        "Flags raise",
        "`fn` of",
        "environment_flags",
        FLAGS.format("raises"),
        lambda: set_environment_flags(CPU, {}),
    ),
    *_by_value(
        "Compiler options",
        "compiler_options",
        "CompilerOptions",
        lambda: wanted_compiler_options(CPU, [brought(CompilerOptions)]),
    ),
    _hardware(
        "Compile targets",
        "`environment` is not text",
        "`environment` of",
        "aot_targets",
        TARGET.format("environment", "numbers"),
        lambda: compile_environment(brought(AotTarget), CPU),
    ),
    _hardware(
        "Compile targets",
        "`devices` returns a number",
        "`devices` of",
        "aot_targets",
        TARGET.format("devices", "three"),
        lambda: compile_devices(brought(AotTarget), CPU),
    ),
    _hardware(
        "Compile targets",
        "`devices` raises",
        "`devices` of",
        "aot_targets",
        TARGET.format("devices", "raises"),
        lambda: compile_devices(brought(AotTarget), CPU),
    ),
    _hardware(
        "Launchers",
        "`process_info` returns a number",
        "`process_info` of",
        "launchers",
        LAUNCHER.format("three"),
        lambda: engine_process_info({}),
    ),
    _hardware(
        "Launchers",
        "`process_info` raises",
        "`process_info` of",
        "launchers",
        LAUNCHER.format("raises"),
        lambda: engine_process_info({}),
    ),
    _hardware(
        "Launchers",
        "`config` is not a launcher",
        "`config` of",
        "launchers",
        LAUNCHER.format("three"),
        lambda: launcher_class(find_launcher("odd")),
    ),
    *_by_value(
        "Features",
        "features",
        "Feature",
        lambda: why_not_in(brought(Feature), tiny(), CPU),
        "evidence",
    ),
    _hardware(
        "Commands",
        "`fn` is not a command",
        "`fn` of",
        "commands",
        'Command(name="odd", fn=Ref("axl_acme.code:three"), summary="")',
        lambda: called("odd"),
    ),
    _hardware(
        "Models that are served",
        "The API returns a number",
        "`fn` of",
        "model_apis",
        'ModelApi(name="odd", models=(), fn=Ref("axl_acme.code:three"), summary="")',
        lambda: endpoints_of(brought(ModelApi), None),
    ),
    _hardware(
        "Models that are served",
        "The API raises",
        "`fn` of",
        "model_apis",
        'ModelApi(name="odd", models=(), fn=Ref("axl_acme.code:raises"), summary="")',
        lambda: endpoints_of(brought(ModelApi), None),
    ),
    _hardware(
        "Mesh rules",
        "It names an axis that does not exist",
        "mesh rule",
        "mesh_rules",
        RULE.format('{"fdsp": -1}', ""),
        ruled,
    ),
    _hardware(
        "Mesh rules",
        "Its sizes do not fit the devices",
        "mesh rule",
        "mesh_rules",
        RULE.format('{"fsdp": 3}', ""),
        ruled,
    ),
    _hardware(
        "Mesh rules",
        "It has a modifier that is a number",
        "mesh rule",
        "mesh_rules",
        RULE.format('{"fsdp": -1}', "3,"),
        ruled,
    ),
    _hardware(
        "Mesh rules",
        "It has a change that nobody brings",
        "mesh rule",
        "mesh_rules",
        RULE.format('{"fsdp": -1}', '"remaat",'),
        ruled,
    ),
    _hardware(
        "Files of others",
        "A Hugging Face family is a number",
        "`family` of",
        "hugging_face_families",
        'HuggingFaceFamily(name="odd", family=Ref("axl_acme.code:three"), summary="")',
        lambda: family_named("odd"),
    ),
    _hardware(
        "Files of others",
        "An adapter format raises",
        "`format` of",
        "adapter_formats",
        'AdapterFormat(name="odd", layer=Ref("axl_acme.code:Odd"), '
        'format=Ref("axl_acme.code:raises"), summary="")',
        lambda: find_adapter_format("x"),
    ),
]

CASES = [*CHANGES, *DATA, *TASKS, *OBSERVERS, *STORAGES, *MACHINES]
