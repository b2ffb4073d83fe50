"""The hooks there are. Each takes no arguments and yields records; none is called before loading.

A plugin implements a hook with the decorator of the same name on `axcore.plugins.hook`.
"""

from collections.abc import Iterable

import pluggy

from axcore.plugins.compiling import AotTarget, CompilerOptions
from axcore.plugins.families import HardwareFamily
from axcore.plugins.feature import Feature
from axcore.plugins.launching import JobLauncher
from axcore.plugins.mesh_rules import MeshRule
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
from axcore.plugins.scheme import QuantizationScheme
from axcore.plugins.storing import CheckpointStorage

PROJECT = "axcore"

_spec = pluggy.HookspecMarker(PROJECT)


@_spec
def hardware_families() -> Iterable[HardwareFamily]:
    """Describes families of hardware: targets' names, figures per chip, and detection.

    Example:
        @hook.hardware_families
        def hardware_families():
            x1 = Hardware(family="acme", generation="x1", chips=4, memory_bytes=32 * 2**30)
            yield HardwareFamily(name="acme", hosts=(x1,), detect=Ref("axl_acme.detect:detect"),
                                 summary="Acme accelerators")
    """
    return ()


@_spec
def environment_flags() -> Iterable[EnvironmentFlags]:
    """Brings flags that hardware wants in an environment variable before JAX starts.

    They are merged flag by flag. What the user has set wins; two plugins that want different values
    of one flag, and flags that come after JAX has started, are errors.

    Example:
        @hook.environment_flags
        def environment_flags():
            yield EnvironmentFlags(name="acme_overlap", variable="XLA_FLAGS", on=on(family="acme"),
                                   fn=Ref("axl_acme.flags:overlap"), summary="Overlap transfers")
    """
    return ()


@_spec
def compiler_options() -> Iterable[CompilerOptions]:
    """Brings options that train steps are compiled with for some hardware, here or ahead of time.

    Two plugins that want different values of one option are an error.

    Example:
        @hook.compiler_options
        def compiler_options():
            yield CompilerOptions(name="acme_overlap", on=on(family="acme"),
                                  fn=Ref("axl_acme.compiler:options"), summary="Overlap transfers")
    """
    return ()


@_spec
def aot_targets() -> Iterable[AotTarget]:
    """Says how to compile for hardware that is not here, for `axcore aot`.

    Example:
        @hook.aot_targets
        def aot_targets():
            yield AotTarget(name="acme_compiler", on=on(family="acme"), modules=("libacme",),
                            install="axl-acme[aot]", devices=Ref("axl_acme.aot:devices"),
                            environment=Ref("axl_acme.topology:environment"),
                            summary="The compiler of Acme's driver")
    """
    return ()


@_spec
def mesh_rules() -> Iterable[MeshRule]:
    """Says how work is laid out on some hardware where an experiment has no rule of its own.

    Such a rule changes layout, flags, kernels and memory use only; never the numbers.

    Example:
        @hook.mesh_rules
        def mesh_rules():
            yield MeshRule(match="acme-*", mesh={"fsdp": -1})
    """
    return ()


@_spec
def ops() -> Iterable[Op]:
    """Declares ops, which kernels then name.

    Example:
        @hook.ops
        def ops():
            yield Op(name="fft", fn=Ref("axl_acme.fft:fft"), summary="Fourier transform")
    """
    return ()


@_spec
def kernels() -> Iterable[Kernel]:
    """Brings implementations of ops, each for the hardware and the calls that it says.

    Example:
        @hook.kernels
        def kernels():
            yield Kernel(op="attention", name="acme_flash", priority=200, on=on(family="acme"),
                         accepts=Ref("axl_acme.flash:accepts"), fn=Ref("axl_acme.flash:attention"))
    """
    return ()


@_spec
def layer_variants() -> Iterable[LayerVariant]:
    """Brings layers that can stand where another layer stands.

    Example:
        @hook.layer_variants
        def layer_variants():
            yield LayerVariant(name="acme_norm", config=Ref("axl_acme.norm:AcmeNorm.Config"),
                               replaces=Ref("axcore.layers:RMSNorm"), summary="Norm without mean")
    """
    return ()


@_spec
def modifiers() -> Iterable[Modifier]:
    """Brings changes of configs that users ask for by name. No plugin changes a config unasked.

    Example:
        @hook.modifiers
        def modifiers():
            yield Modifier(name="acme_packed", config=Ref("axl_acme.modifiers:Packed"),
                           summary="Weights in Acme's packed layout")
    """
    return ()


@_spec
def quantization_schemes() -> Iterable[QuantizationScheme]:
    """Brings ways to compute layers' products from narrow numbers, which users ask for by name.

    Example:
        @hook.quantization_schemes
        def quantization_schemes():
            yield QuantizationScheme(name="acme_int4", config=Ref("axl_acme.int4:Int4.Config"),
                                     on=on(family="acme"), summary="int4 with scales per block")
    """
    return ()


@_spec
def data_sources() -> Iterable[DataSource]:
    """Brings sources of text, which users ask for by name.

    Example:
        @hook.data_sources
        def data_sources():
            yield DataSource(name="acme_mail", config=Ref("axl_acme.mail:Mail.Config"),
                             summary="Messages of a mailbox")
    """
    return ()


@_spec
def tokenizers() -> Iterable[DataTokenizer]:
    """Brings tokenizers, which users ask for by name.

    Example:
        @hook.tokenizers
        def tokenizers():
            yield DataTokenizer(name="acme_letters", config=Ref("axl_acme.text:Letters.Config"),
                                summary="One token a letter")
    """
    return ()


@_spec
def metric_writers() -> Iterable[MetricWriter]:
    """Brings places to write a run's metrics to, which users ask for by name.

    Metrics may not be lost: a writer that raises ends the run with an error that names it.

    Example:
        @hook.metric_writers
        def metric_writers():
            yield MetricWriter(name="acme_board", fn=Ref("axl_acme.board:open_board"),
                               summary="Curves on Acme's board")
    """
    return ()


@_spec
def observers() -> Iterable[RunObserver]:
    """Brings observers of runs, which users switch on by name. No plugin watches unasked.

    An observer gets every event of a run as a frozen value. One that raises is switched off with a
    warning, and the run goes on.

    Example:
        @hook.observers
        def observers():
            yield RunObserver(name="acme_lamp", fn=Ref("axl_acme.lamp:Lamp"),
                              summary="A lamp that is on while a run makes steps")
    """
    return ()


@_spec
def checkpoint_storages() -> Iterable[CheckpointStorage]:
    """Brings places where checkpoints can be kept, each by the scheme of its directories.

    Example:
        @hook.checkpoint_storages
        def checkpoint_storages():
            yield CheckpointStorage(name="acme", fn=Ref("axl_acme.vault:open_vault"),
                                    summary="Acme's vault")
    """
    return ()


@_spec
def launchers() -> Iterable[JobLauncher]:
    """Brings engines that start runs, for `axcore launch NAME`, and says what they tell processes.

    Example:
        @hook.launchers
        def launchers():
            yield JobLauncher(name="acme_grid", config=Ref("axl_acme.grid:Grid"),
                              place=Ref("axl_acme.grid:grid_place"), summary="Acme's batch queue")
    """
    return ()


@_spec
def experiments() -> Iterable[Experiment]:
    """Brings named, complete training configs.

    Example:
        @hook.experiments
        def experiments():
            yield Experiment(name="acme_tiny", fn=Ref("axl_acme.experiments:tiny"),
                             summary="A small model on Acme chips")
    """
    return ()


@_spec
def features() -> Iterable[Feature]:
    """Brings features that can be added to any model, for `axcore loc` to measure what they cost.

    Example:
        @hook.features
        def features():
            yield Feature(name="acme_norm", apply=Ref("axl_acme.features:with_acme_norm"),
                          evidence=Ref("axl_acme.features:has_acme_norm"),
                          implementation=("axl_acme.norm",), summary="Acme's norm everywhere")
    """
    return ()


@_spec
def commands() -> Iterable[Command]:
    """Brings subcommands of `axcore`.

    Example:
        @hook.commands
        def commands():
            yield Command(name="acme-top", fn=Ref("axl_acme.top:top"), summary="Shows chip load")
    """
    return ()


@_spec
def doctor_checks() -> Iterable[DoctorCheck]:
    """Brings checks for `axcore doctor`.

    Example:
        @hook.doctor_checks
        def doctor_checks():
            yield DoctorCheck(name="acme-driver", fn=Ref("axl_acme.doctor:driver"),
                              summary="The driver is new enough")
    """
    return ()
