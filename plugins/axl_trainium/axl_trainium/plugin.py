"""What axl-trainium brings to axcore. Imports no jax."""

from collections.abc import Iterator

from axcore.plugins import (
    AotTarget,
    DoctorCheck,
    EnvironmentFlags,
    Feature,
    HardwareFamily,
    Kernel,
    MeshRule,
    Ref,
    hook,
    requires,
)
from axl_trainium.hardware import hosts


@hook.hardware_families
def hardware_families() -> Iterator[HardwareFamily]:
    """AWS Trainium."""
    yield HardwareFamily(
        name="trainium",
        hosts=hosts(),
        detect=Ref("axl_trainium.hardware:detect"),
        present=Ref("axl_trainium.hardware:present"),
        summary="AWS Trainium in hosts of sixteen chips",
    )


@hook.aot_targets
def aot_targets() -> Iterator[AotTarget]:
    """Neuron's compiler is not available without its SDK: the host's is used."""
    yield AotTarget(
        name="host_for_trainium",
        requires=requires(family="trainium"),
        limits="compiled by XLA for the host, with the portable kernels, as many devices as the "
        "target shows: shapes, shardings, collectives and FLOPs are the target's; memory is what "
        "the host's compiler would use, and the time is a roofline",
        summary="The host's compiler, for shapes and shardings only",
    )


@hook.environment_flags
def environment_flags() -> Iterator[EnvironmentFlags]:
    """Options of Neuron's compiler for the programs that it gets."""
    yield EnvironmentFlags(
        name="transformer_training",
        variable="NEURON_CC_FLAGS",
        requires=requires(family="trainium"),
        fn=Ref("axl_trainium.hardware:transformer_training"),
        summary="Neuron's compiler expects a transformer that is trained",
    )


@hook.mesh_rules
def mesh_rules() -> Iterator[MeshRule]:
    """Fully sharded over groups of devices that split each layer's width between them.

    Such a group is one chip; on trn2, four devices. Source: the mesh of AXLearn
    (arXiv:2507.05411).
    """
    yield MeshRule(match="trainium-trn1-*", mesh={"fsdp": -1, "model": 2})
    yield MeshRule(match="trainium-trn2-*", mesh={"fsdp": -1, "model": 4})


SIMULATED = "no compiler of the vendor's has taken it yet; the plugin's simulator runs it"
"""Why the portable kernels serve by default: they at least compile."""


@hook.kernels
def kernels() -> Iterator[Kernel]:
    """Kernels of our own in NKI."""
    for op, name, module, function in (
        ("attention", "nki_flash_attention", "attention.api", "nki_flash_attention"),
        (
            "attention_backward",
            "nki_flash_attention",
            "attention.backward",
            "nki_flash_attention_backward",
        ),
        ("cross_entropy", "nki_cross_entropy", "cross_entropy.api", "nki_cross_entropy"),
        ("rms_norm", "nki_rms_norm", "rms_norm.api", "nki_rms_norm"),
        ("rope", "nki_rope", "rope.api", "nki_rope"),
    ):
        yield Kernel(
            op=op,
            name=name,
            summary="NKI",
            priority=300,
            pinned_only=SIMULATED,
            requires=requires(family="trainium", generation="trn2"),
            unsupported_reason=Ref(f"axl_trainium.kernels.{module}:unsupported_reason"),
            forward=Ref(f"axl_trainium.kernels.{module}:{function}"),
            backward=None
            if op.startswith("attention") or op == "rope"
            else Ref(f"axl_trainium.kernels.{module}:{function}_backward"),
        )


@hook.features
def features() -> Iterator[Feature]:
    """What these chips add to any model."""
    yield Feature(
        name="trainium",
        evidence=Ref("axl_trainium.hardware:runs_on_trainium"),
        implementation=("axl_trainium.hardware",),
        target="trainium-trn2-16",
        summary="A new chip: any model runs on Trainium",
    )


@hook.doctor_checks
def doctor_checks() -> Iterator[DoctorCheck]:
    """Is JAX able to reach Trainium?"""
    yield DoctorCheck(
        name="neuron-packages",
        fn=Ref("axl_trainium.doctor:neuron_packages"),
        summary="The Neuron runtime is installed, and jax is not too new for it",
    )
