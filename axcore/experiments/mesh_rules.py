"""How the experiments with large models are laid out on each family of hardware.

Plugins' own rules change no number. These may: narrow products are named here where the hardware
gains from them, so that an experiment's results say what it was trained with.
"""

from axcore.layers import Fp8Training, Int8Training
from axcore.modifiers import Remat
from axcore.plugins import MeshRule

_SHARDED = {"fsdp": -1}
_FULL = Remat(policy="full")

MESH_RULES = (
    MeshRule(match="tpu-v5e-*", mesh=_SHARDED, modifiers=(Int8Training(), _FULL)),
    MeshRule(match="tpu-v6e-*", mesh=_SHARDED, modifiers=(Int8Training(), _FULL)),
    MeshRule(match="tpu-*", mesh=_SHARDED, modifiers=(_FULL,)),
    MeshRule(match="gpu-a100*", mesh=_SHARDED, modifiers=(_FULL,)),
    MeshRule(match="gpu-*", mesh=_SHARDED, modifiers=(Fp8Training(), _FULL)),
    MeshRule(match="trainium-*", mesh={"fsdp": -1, "model": 4}, modifiers=(_FULL,)),
)
