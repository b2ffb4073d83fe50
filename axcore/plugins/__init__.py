"""Records, hooks, the plugin host, and hardware as values. Imports no jax."""

from axcore.plugins.changes import apply_modifier, find_change, with_changes
from axcore.plugins.compiler_options import wanted_compiler_options
from axcore.plugins.compiling import AotTarget, CompilerOptions
from axcore.plugins.families import HardwareFamily
from axcore.plugins.feature import Feature
from axcore.plugins.findings import Finding
from axcore.plugins.flags import set_environment_flags, wanted_flags
from axcore.plugins.hardware import Hardware
from axcore.plugins.hooks import hook
from axcore.plugins.host import PluginHost, load_host, plugin_host
from axcore.plugins.launching import JobLauncher
from axcore.plugins.mesh_rules import MeshRule, check_rules, find_mesh_rule
from axcore.plugins.plugin import Plugin
from axcore.plugins.predicates import on
from axcore.plugins.record import Record
from axcore.plugins.records import (
    Command,
    DataSource,
    DataTokenizer,
    DoctorCheck,
    EnvironmentFlags,
    Experiment,
    Kernel,
    LayerVariant,
    MetricWriter,
    Modifier,
    Op,
    RunObserver,
)
from axcore.plugins.ref import Ref
from axcore.plugins.scheme import QuantizationScheme
from axcore.plugins.storing import CheckpointStorage
from axcore.plugins.variants import with_variant

__all__ = [
    "AotTarget",
    "CheckpointStorage",
    "Command",
    "CompilerOptions",
    "DataSource",
    "DataTokenizer",
    "DoctorCheck",
    "EnvironmentFlags",
    "Experiment",
    "Feature",
    "Finding",
    "Hardware",
    "HardwareFamily",
    "JobLauncher",
    "Kernel",
    "LayerVariant",
    "MeshRule",
    "MetricWriter",
    "Modifier",
    "Op",
    "Plugin",
    "PluginHost",
    "QuantizationScheme",
    "Record",
    "Ref",
    "RunObserver",
    "apply_modifier",
    "check_rules",
    "find_change",
    "find_mesh_rule",
    "hook",
    "load_host",
    "on",
    "plugin_host",
    "set_environment_flags",
    "wanted_compiler_options",
    "wanted_flags",
    "with_changes",
    "with_variant",
]
