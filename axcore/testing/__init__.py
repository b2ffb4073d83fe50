"""The kit for those who write plugins: suites to inherit, fixtures, and `make_dist`.

Nothing here is imported before it is used, so that pytest starts as fast with axcore installed as
without. The fixtures are in `pytest_plugin.py`, which pytest finds by itself.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from axcore.testing.command_line import CommandLine, Ran, make_dist
    from axcore.testing.compile_suite import CompileSuite
    from axcore.testing.contracts import (
        AttentionTestCase,
        Case,
        GroupedMatmulTestCase,
        OpContract,
        attention_case,
        grouped_matmul_case,
    )
    from axcore.testing.data_source_suite import DataSourceSuite
    from axcore.testing.experiment_suite import ExperimentSuite
    from axcore.testing.kernel_suite import KernelSuite
    from axcore.testing.launcher_suite import LauncherSuite
    from axcore.testing.layer_suite import LayerSuite
    from axcore.testing.mesh_rule_suite import MeshRuleSuite
    from axcore.testing.modifier_suite import ModifierSuite
    from axcore.testing.observer_suite import ObserverSuite
    from axcore.testing.plugin_suite import PluginSuite
    from axcore.testing.sampler_suite import SamplerSuite
    from axcore.testing.storage_suite import StorageSuite
    from axcore.testing.tiny import small_experiment, trainer_on
    from axcore.testing.tokenizer_suite import TokenizerSuite
    from axcore.testing.writer_suite import WriterSuite

_HOMES = {
    "AttentionTestCase": "contracts",
    "Case": "contracts",
    "CommandLine": "command_line",
    "CompileSuite": "compile_suite",
    "DataSourceSuite": "data_source_suite",
    "ExperimentSuite": "experiment_suite",
    "GroupedMatmulTestCase": "contracts",
    "KernelSuite": "kernel_suite",
    "LauncherSuite": "launcher_suite",
    "LayerSuite": "layer_suite",
    "MeshRuleSuite": "mesh_rule_suite",
    "ModifierSuite": "modifier_suite",
    "ObserverSuite": "observer_suite",
    "OpContract": "contracts",
    "PluginSuite": "plugin_suite",
    "Ran": "command_line",
    "SamplerSuite": "sampler_suite",
    "StorageSuite": "storage_suite",
    "TokenizerSuite": "tokenizer_suite",
    "WriterSuite": "writer_suite",
    "attention_case": "contracts",
    "grouped_matmul_case": "contracts",
    "make_dist": "command_line",
    "small_experiment": "tiny",
    "trainer_on": "tiny",
}

__all__ = [
    "AttentionTestCase",
    "Case",
    "CommandLine",
    "CompileSuite",
    "DataSourceSuite",
    "ExperimentSuite",
    "GroupedMatmulTestCase",
    "KernelSuite",
    "LauncherSuite",
    "LayerSuite",
    "MeshRuleSuite",
    "ModifierSuite",
    "ObserverSuite",
    "OpContract",
    "PluginSuite",
    "Ran",
    "SamplerSuite",
    "StorageSuite",
    "TokenizerSuite",
    "WriterSuite",
    "attention_case",
    "grouped_matmul_case",
    "make_dist",
    "small_experiment",
    "trainer_on",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
