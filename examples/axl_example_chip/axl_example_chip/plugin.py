"""A made-up chip, run on the host's processors. Where this is installed they pass for it."""

import axcore.plugins as ax

CHIP = "axl_example_chip.chip"


@ax.hook.hardware_families
def hardware_families():
    x1 = ax.Hardware(family="example", generation="x1", chips=4, peak_flops={"float32": 1e12})
    detect = ax.Ref(f"{CHIP}:detect")
    yield ax.HardwareFamily(name="example", hosts=(x1,), detect=detect, summary="Made up")


@ax.hook.environment_flags
def environment_flags():
    fn, only = ax.Ref(f"{CHIP}:flags"), ax.requires(family="example")
    yield ax.EnvironmentFlags(
        name="example_devices", variable="XLA_FLAGS", requires=only, fn=fn, summary="As in a target"
    )


@ax.hook.mesh_rules
def mesh_rules():
    yield ax.MeshRule(match="example-*", mesh={"data": -1, "fsdp": 2})


@ax.hook.kernels
def kernels():
    only, no = ax.requires(family="example"), ax.Ref(f"{CHIP}:unsupported_reason")
    chip = {"requires": only, "unsupported_reason": no, "forward": ax.Ref(f"{CHIP}:loss")}
    in_jnp = {"is_differentiable": True, "partitioned_by": "compiler", "summary": "All at once"}
    yield ax.Kernel(op="cross_entropy", name="example_loss", priority=200, **chip, **in_jnp)


@ax.hook.layer_variants
def layer_variants():
    config, replaces = ax.Ref(f"{CHIP}:ExampleNorm.Config"), ax.Ref("axcore.layers:RMSNorm")
    yield ax.LayerVariant(
        name="example_norm", config=config, replaces=replaces, summary="Norm without a weight"
    )
