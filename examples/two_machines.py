"""One experiment, two machines: mesh rules say what becomes of it on each; the model says nothing.

Run it: it shows what changes on a slice of TPU v5e, and on eight hosts of H100s.
"""

from axcore.config import evolve
from axcore.experiments.pretraining import llama2_7b
from axcore.modifiers import Fp8Training, Int8Training, MicroBatches, RematModifier
from axcore.plugins import Hardware, MeshRule
from axcore.trainer import resolve

RULES = (
    MeshRule(
        match="tpu-v5e-*",
        mesh={"fsdp": -1},
        modifiers=(Int8Training(), RematModifier(policy="offload_attention")),
    ),
    MeshRule(
        match="gpu-h100-*",
        mesh={"data": -1, "fsdp": 8},
        modifiers=(
            Fp8Training(),
            RematModifier(policy="save_heads"),
            MicroBatches(rows_per_device=4),
        ),
    ),
)


def main() -> None:
    """Prints what the rules change for each machine."""
    experiment = evolve(llama2_7b(), mesh_rules=RULES)
    for target in ("tpu-v5e-256", "gpu-h100-64"):
        hardware = Hardware.parse(target)
        resolved = resolve(experiment, hardware)
        print(f"{target}: {hardware.num_devices} devices in {hardware.num_hosts} hosts")
        print(resolved.mesh_rule_diff())
        assert resolved.config.data == experiment.data
        assert resolved.config.learner == experiment.learner


if __name__ == "__main__":
    main()
