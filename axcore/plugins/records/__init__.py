"""Every record, and `hook`, which has a decorator for each.

Written by `python -m axcore.plugins.generate`.
"""

from axcore.hardware.families import HardwareFamily
from axcore.hardware.mesh_rules import MeshRule
from axcore.plugins.hooks import HookDecorator, HookTable
from axcore.plugins.records.hardware import AotTarget, CompilerOptions, EnvironmentFlags
from axcore.plugins.records.kernels import Kernel, Op, QuantizationScheme
from axcore.plugins.records.models import (
    AdapterFormat,
    Feature,
    HuggingFaceFamily,
    LayerVariant,
    Modifier,
    RopeScaling,
)
from axcore.plugins.records.runs import (
    CheckpointStorage,
    Command,
    DoctorCheck,
    JobLauncher,
    MetricWriter,
    ModelApi,
    RunObserver,
)
from axcore.plugins.records.training import (
    DataSource,
    DataTokenizer,
    DataTransform,
    EvaluationTask,
    Experiment,
    RewardFunction,
    RolloutEnvironment,
    TrainingTask,
)

__all__ = [
    "AdapterFormat",
    "AotTarget",
    "CheckpointStorage",
    "Command",
    "CompilerOptions",
    "DataSource",
    "DataTokenizer",
    "DataTransform",
    "DoctorCheck",
    "EnvironmentFlags",
    "EvaluationTask",
    "Experiment",
    "Feature",
    "HardwareFamily",
    "HuggingFaceFamily",
    "JobLauncher",
    "Kernel",
    "LayerVariant",
    "MeshRule",
    "MetricWriter",
    "ModelApi",
    "Modifier",
    "Op",
    "QuantizationScheme",
    "RewardFunction",
    "RolloutEnvironment",
    "RopeScaling",
    "RunObserver",
    "TrainingTask",
    "hook",
]


class Hooks(HookTable):
    """A decorator for each hook."""

    adapter_formats = HookDecorator(AdapterFormat)
    aot_targets = HookDecorator(AotTarget)
    checkpoint_storages = HookDecorator(CheckpointStorage)
    commands = HookDecorator(Command)
    compiler_options = HookDecorator(CompilerOptions)
    data_sources = HookDecorator(DataSource)
    data_transforms = HookDecorator(DataTransform)
    doctor_checks = HookDecorator(DoctorCheck)
    environment_flags = HookDecorator(EnvironmentFlags)
    environments = HookDecorator(RolloutEnvironment)
    evaluation_tasks = HookDecorator(EvaluationTask)
    experiments = HookDecorator(Experiment)
    features = HookDecorator(Feature)
    hardware_families = HookDecorator(HardwareFamily)
    hugging_face_families = HookDecorator(HuggingFaceFamily)
    kernels = HookDecorator(Kernel)
    launchers = HookDecorator(JobLauncher)
    layer_variants = HookDecorator(LayerVariant)
    mesh_rules = HookDecorator(MeshRule)
    metric_writers = HookDecorator(MetricWriter)
    model_apis = HookDecorator(ModelApi)
    modifiers = HookDecorator(Modifier)
    observers = HookDecorator(RunObserver)
    ops = HookDecorator(Op)
    quantization_schemes = HookDecorator(QuantizationScheme)
    rewards = HookDecorator(RewardFunction)
    rope_scalings = HookDecorator(RopeScaling)
    tokenizers = HookDecorator(DataTokenizer)
    training_tasks = HookDecorator(TrainingTask)


hook = Hooks()
