"""A made-up chip, run on the host's processors. Where this is installed they pass for it."""

from axcore.plugins import (
    EnvironmentFlags,
    Hardware,
    HardwareFamily,
    Kernel,
    LayerVariant,
    MeshRule,
    Ref,
    hook,
    on,
)

CHIP = "axl_example_chip.chip"


@hook.hardware_families
def hardware_families():
    x1 = Hardware(family="example", generation="x1", chips=4, peak_flops={"float32": 1e12})
    yield HardwareFamily(
        name="example", hosts=(x1,), detect=Ref(f"{CHIP}:detect"), summary="Made up"
    )


@hook.environment_flags
def environment_flags():
    yield EnvironmentFlags(
        name="example_devices",
        variable="XLA_FLAGS",
        on=on(family="example"),
        fn=Ref(f"{CHIP}:flags"),
        summary="As many devices as a target has",
    )


@hook.mesh_rules
def mesh_rules():
    yield MeshRule(match="example-*", mesh={"data": -1, "fsdp": 2})


@hook.kernels
def kernels():
    yield Kernel(
        op="cross_entropy",
        name="example_loss",
        priority=200,
        on=on(family="example"),
        accepts=Ref(f"{CHIP}:accepts"),
        fn=Ref(f"{CHIP}:loss"),
    )


@hook.layer_variants
def layer_variants():
    yield LayerVariant(
        name="example_norm",
        config=Ref(f"{CHIP}:ExampleNorm.Config"),
        replaces=Ref("axcore.layers:RMSNorm"),
        summary="Norm without a weight",
    )
