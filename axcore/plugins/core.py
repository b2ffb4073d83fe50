"""What the core itself brings, through the same hooks as everybody, under the name `core`.

References are strings: nothing here is imported until it is used. To add a record of the core,
add a line to the hook it belongs to.
"""

from collections.abc import Iterator

from axcore.plugins.families import HardwareFamily
from axcore.plugins.hardware import Hardware
from axcore.plugins.hooks import hook
from axcore.plugins.mesh_rules import MeshRule
from axcore.plugins.records import Command, DoctorCheck, Experiment, Kernel, Op
from axcore.plugins.ref import Ref


@hook.hardware_families
def hardware_families() -> Iterator[HardwareFamily]:
    """Any machine without an accelerator; `cpu-8` is 8 JAX devices in one process."""
    yield HardwareFamily(
        name="cpu",
        hosts=(Hardware(family="cpu"),),
        detect=Ref("axcore.plugins.core_detect:detect_cpu"),
        summary="Host processors, or devices that XLA fakes on them",
        is_one_host=True,
    )


@hook.mesh_rules
def mesh_rules() -> Iterator[MeshRule]:
    """Fully sharded over whatever devices there are."""
    yield MeshRule(match="cpu-*", mesh={"fsdp": -1})


@hook.ops
def ops() -> Iterator[Op]:
    """What the core's layers ask for."""
    yield Op(
        name="attention",
        fn=Ref("axcore.ops:attention"),
        summary="Scaled dot-product attention with masks, caps, sinks and dropout",
    )
    yield Op(
        name="attention_backward",
        fn=Ref("axcore.ops.attention_vjp:attention_from_halves"),
        summary="Its gradient, for attention kernels that are forward only",
    )
    yield Op(
        name="cross_entropy",
        fn=Ref("axcore.ops:cross_entropy"),
        summary="Next-token loss without the whole logits in memory",
    )


@hook.kernels
def kernels() -> Iterator[Kernel]:
    """What serves every platform, and the references that define what the ops mean."""
    for op, name, priority, target in (
        ("attention", "portable", 50, "attention_portable:attention_portable"),
        ("attention", "blockwise", 10, "attention_blockwise:attention_blockwise"),
        ("attention", "reference", 0, "attention_reference:attention_reference"),
        ("attention_backward", "portable", 50, "attention_blockwise:blockwise_backward"),
        ("cross_entropy", "portable", 50, "cross_entropy_portable:cross_entropy_portable"),
        ("cross_entropy", "reference", 0, "cross_entropy_reference:cross_entropy_reference"),
    ):
        yield Kernel(op=op, name=name, priority=priority, fn=Ref(f"axcore.ops.{target}"))


@hook.experiments
def experiments() -> Iterator[Experiment]:
    """What can be trained with the core alone."""
    yield Experiment(
        name="tiny",
        fn=Ref("axcore.experiments.tiny:tiny"),
        summary="0.9M parameters on the bytes of Python's standard library; minutes on a laptop",
    )


@hook.commands
def commands() -> Iterator[Command]:
    """The subcommands of `axcore`: one line each; `fn` names a click command."""
    for name, module, summary in (
        ("train", "train", "Train an experiment, or go on where it was stopped"),
        ("generate", "generate", "Draw text from a trained run"),
        ("eval", "evaluate", "The held-out loss of a trained run"),
        ("config", "config", "Show, compare and pin down configs"),
        ("experiments", "experiments", "List the experiments there are"),
        ("plugins", "plugins", "List plugins, and what is wrong with them"),
        ("kernels", "kernels", "List an op's kernels, and why each is chosen or not"),
        ("doctor", "doctor", "Look for what is wrong with this machine's set-up"),
    ):
        yield Command(name=name, fn=Ref(f"axcore.cli.{module}:{module}"), summary=summary)


@hook.doctor_checks
def doctor_checks() -> Iterator[DoctorCheck]:
    """What `axcore doctor` looks at whatever is installed."""
    for name, function, summary in (
        ("versions", "versions", "Python and packages are ones that axcore runs on"),
        ("plugins", "plugins", "Every plugin that is installed loads"),
        ("environment", "environment", "Variables that JAX reads say what they seem to"),
        ("devices", "devices", "JAX starts, and a plugin knows its devices"),
    ):
        yield DoctorCheck(
            name=name, fn=Ref(f"axcore.cli.doctor_checks:{function}"), summary=summary
        )
