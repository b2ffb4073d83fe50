"""The peak memory of a train step by its attention kernel, and the budgets that it is held to.

The budgets are in `attention_memory.json`, in MiB a device. A peak over its budget fails, as does
one that is so far below that the budget should be lowered.
"""

import json
from pathlib import Path

from axcore.config import evolve, update_config
from axcore.models import transformer
from axcore.module import DTypes
from axcore.testing import small_experiment, trainer_on

BUDGETS = Path(__file__).with_name("attention_memory.json")
ABOVE, BELOW = 1.02, 0.9
MIB = 2**20


def peak_mib(kernel, devices, folder, *, tokens=2048):
    """A transformer of sixteen layers, two rows of packed documents on each device, in bfloat16."""
    cfg = small_experiment(folder)
    model = transformer(
        vocab_size=264, dim=512, num_layers=16, num_heads=4, num_kv_heads=4, hidden_dim=1408
    )
    trainer = trainer_on(
        update_config(
            cfg,
            {
                "model": evolve(model, dtypes=DTypes(compute="bfloat16")),
                "data": evolve(cfg.data, seq_len=tokens, batch_size=2 * len(devices)),
                "mesh": {"fsdp": -1},
                "kernels.pins": {"attention": kernel},
                "kernels.allow": ("portable",),
            },
        ),
        devices,
    )
    memory = trainer.compiler.compiled_step.memory_analysis()
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    peak = memory.argument_size_in_bytes + memory.temp_size_in_bytes + results
    return peak / MIB


def check(target, kernel, peak):
    """Holds a peak to the budget recorded for a target and a kernel."""
    budget = json.loads(BUDGETS.read_text()).get(target, {}).get(kernel)
    told = f"{target}, {kernel}: {peak:.0f} MiB a device; {BUDGETS.name} allows {budget}"
    assert budget is not None, told
    assert BELOW * budget <= peak <= ABOVE * budget, told
