"""Every combination of parallelism gives the loss and the gradients of one device.

One row a combination: a mesh, and what of the model or of the rules differs from the plainest.
"""

import attrs
import jax
import numpy as np
import pytest


@attrs.frozen
class Combination:
    """A mesh, written as `data 2 x fsdp 4`, and how attention reaches keys on other devices."""

    mesh: str
    attention: str = "gather"

    @property
    def shape(self):
        """Returns the mesh axes with their sizes."""
        pairs = (part.split() for part in self.mesh.split(" x "))
        return tuple((name, int(size)) for name, size in pairs)

    def __str__(self):
        return f"{self.mesh}, {self.attention}" if "seq" in self.mesh else self.mesh


TABLE = (
    Combination("data 8"),
    Combination("fsdp 8"),
    Combination("model 2"),
    Combination("expert 4"),
    Combination("data 2 x fsdp 4"),
    Combination("data 4 x model 2"),
    Combination("fsdp 4 x model 2"),
    Combination("data 2 x fsdp 2 x model 2"),
    Combination("data 2 x expert 2 x model 2"),
    Combination("seq 8", "gather"),
    Combination("seq 4", "ring"),
    Combination("seq 2", "heads"),
    Combination("fsdp 4 x seq 2", "ring"),
    Combination("data 2 x seq 4", "gather"),
    Combination("seq 4 x model 2", "ring"),
    Combination("fsdp 2 x seq 2 x model 2", "gather"),
    Combination("data 2 x seq 2 x model 2", "ring"),
    Combination("data 2 x fsdp 2 x seq 2", "heads"),
)


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_combination_changes_no_number(on_mesh, on_one_device, small_model, row):
    _, loss, gradients = on_mesh(small_model, row.shape, attention=row.attention)
    expected_loss, expected_gradients = on_one_device(small_model)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    jax.tree.map(
        lambda got, expected: np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6),
        gradients,
        expected_gradients,
    )
