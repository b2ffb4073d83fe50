"""Every combination of parallelism gives the loss and the gradients of one device.

One row a combination: a mesh, and what of the model or of the way of working differs from the
plainest. The same model with the same stack is the measure; that a `Pipeline` is a `ScannedLayers`
over parts of a batch is tested with the layer.
"""

import attrs
import jax
import numpy as np
import pytest

from axcore.config import replace_config
from axcore.layers import FeedForward, MoE, Pipeline, ScannedLayers


@attrs.frozen
class Combination:
    """A combination.

    Args:
        mesh: As `data 2 x fsdp 4`.
        context_parallelism: How attention reaches keys on other devices.
        parts: Micro-batches of a pipeline; 0 is none.
        rounds: Rounds of that pipeline.
        experts: Experts in the place of every feed-forward; 0 is none.
    """

    mesh: str
    context_parallelism: str = "all_gather"
    parts: int = 0
    rounds: int = 1
    experts: int = 0

    @property
    def shape(self):
        """Returns the mesh axes with their sizes."""
        pairs = (part.split() for part in self.mesh.split(" x "))
        return tuple((name, int(size)) for name, size in pairs)

    def model(self, cfg):
        """Returns the config with the stack and the feed-forwards of this row."""
        if self.experts:
            cfg = replace_config(
                cfg, FeedForward, lambda ffn: MoE.Config(expert=ffn, num_experts=4, top_k=2)
            )
        if self.parts:
            stack = Pipeline.Config(num_micro_batches=self.parts, num_rounds=self.rounds)
            cfg = replace_config(cfg, ScannedLayers, stack)
        return cfg

    def __str__(self):
        named = {
            self.context_parallelism: "seq" in self.mesh,
            f"{self.parts} parts": self.parts,
            f"{self.rounds} rounds": self.rounds > 1,
            f"{self.experts} experts": self.experts,
        }
        return ", ".join([self.mesh, *(text for text, is_so in named.items() if is_so)])


TABLE = (
    Combination("data 8"),
    Combination("fsdp 8"),
    Combination("fsdp 4 x model 2"),
    Combination("seq 8", "all_gather"),
    Combination("seq 4", "ring"),
    Combination("data 2 x seq 2 x model 2", "ring"),
    Combination("data 2 x fsdp 2 x seq 2", "ulysses"),
)
SLOW = (
    Combination("pipeline 2 x data 2 x seq 2", "ring", parts=4),
    Combination("fsdp 2 x expert 2 x seq 2", "all_gather", experts=4),
    Combination("model 2"),
    Combination("data 4 x model 2"),
    Combination("data 2 x fsdp 2 x model 2"),
    Combination("seq 2", "ulysses"),
    Combination("fsdp 4 x seq 2", "ring"),
    Combination("data 2 x seq 4", "all_gather"),
    Combination("fsdp 2 x seq 2 x model 2", "all_gather"),
    Combination("pipeline 4 x data 2", parts=4),
    Combination("pipeline 2 x fsdp 2", parts=4, rounds=2),
    Combination("pipeline 2 x fsdp 2 x model 2", parts=4),
    Combination("expert 4", experts=4),
    Combination("expert 4"),
    Combination("data 2 x fsdp 4"),
    Combination("pipeline 2", parts=4),
    Combination("pipeline 2 x model 2 x seq 2", "all_gather", parts=4, rounds=2),
    Combination("fsdp 2 x expert 4", experts=4),
    Combination("data 2 x expert 2 x model 2", experts=4),
    Combination("pipeline 2 x expert 2 x data 2", parts=2, experts=4),
)
ROWS = (*TABLE, *(pytest.param(row, marks=pytest.mark.slow) for row in SLOW))


@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.quick_one_in(6)
def test_combination_changes_no_number(on_mesh, on_one_device, small_model, row):
    cfg = row.model(small_model)
    _, loss, gradients = on_mesh(cfg, row.shape, context_parallelism=row.context_parallelism)
    expected_loss, expected_gradients = on_one_device(cfg)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    jax.tree.map(
        lambda got, expected: np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6),
        gradients,
        expected_gradients,
    )
