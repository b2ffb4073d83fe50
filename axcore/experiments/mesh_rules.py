"""How the experiments with large models are laid out on each family of hardware.

Plugins' own rules change no number. These may: narrow products are named here where the hardware
gains from them, so that an experiment's results say what it was trained with. On v6e int8 gains
nothing: libtpu gives its products 1.2 times the speed of bfloat16's, less than quantizing costs.
"""

from axcore.modifiers import Fp8Training, Int8Training, MicroBatches, RematModifier
from axcore.plugins import MeshRule


def mesh_rules(
    *, small_rows: int, large_rows: int, gpu_remat: str = "full", tpu_remat: str = "full"
) -> tuple[MeshRule, ...]:
    """Returns the rules for a model; the first that matches holds.

    Where every layer is computed again in the backward pass, a row costs little more than its
    hidden vectors between layers: `2 * seq_len * dim * num_layers` bytes.

    Args:
        small_rows: Rows at a time on a device of 16 to 32 GiB.
        large_rows: Rows at a time on a device of 80 GiB and more.
        gpu_remat: What GPUs of 80 GiB and more keep, where there is room for more than nothing.
        tpu_remat: What TPUs of 90 GiB and more keep.
    """
    sharded = {"fsdp": -1}
    small = (RematModifier(policy="full"), MicroBatches(rows_per_device=small_rows))
    large = (RematModifier(policy=tpu_remat), MicroBatches(rows_per_device=large_rows))
    gpu = (RematModifier(policy=gpu_remat), MicroBatches(rows_per_device=large_rows))
    return (
        MeshRule(match="tpu-v4-*", mesh=sharded, modifiers=small),
        MeshRule(match="tpu-v5e-*", mesh=sharded, modifiers=(Int8Training(), *small)),
        MeshRule(match="tpu-v6e-*", mesh=sharded, modifiers=small),
        MeshRule(match="tpu-*", mesh=sharded, modifiers=large),
        MeshRule(match="gpu-a100-40gb-*", mesh=sharded, modifiers=small),
        MeshRule(match="gpu-a100-*", mesh=sharded, modifiers=gpu),
        MeshRule(match="gpu-h100-*", mesh=sharded, modifiers=(Fp8Training(), *gpu)),
        MeshRule(match="gpu-h200-*", mesh=sharded, modifiers=(Fp8Training(), *gpu)),
        MeshRule(match="gpu-b200-*", mesh=sharded, modifiers=(Fp8Training(), *gpu)),
        MeshRule(match="trainium-*", mesh={"fsdp": -1, "model": 4}, modifiers=small),
    )
