"""Divergences of a student from a teacher are TRL's, with their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.tasks import divergence

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 1.0])
def test_a_divergence_and_its_gradient_are_those_of_trl(beta, temperature):
    torch = pytest.importorskip("torch", reason="run make parity")
    gkd = pytest.importorskip("trl.experimental.gkd", reason="run make parity")
    draw = np.random.default_rng(0)
    logits = [draw.normal(0, 3, (2, 5, 11)).astype(np.float32) for _ in range(2)]

    def loss(student, teacher):
        student, teacher = (jax.nn.log_softmax(one / temperature) for one in (student, teacher))
        return jnp.sum(divergence(student, teacher, beta)) / 10

    found, gradient = jax.value_and_grad(loss)(*map(jnp.asarray, logits))
    student, teacher = (torch.tensor(one, requires_grad=True) for one in logits)
    hf = gkd.GKDTrainer.generalized_jsd_loss(
        student,
        teacher.detach(),
        labels=torch.zeros(2, 5, dtype=torch.long),
        beta=beta,
        temperature=temperature,
    )
    hf.backward()
    assert float(found) == pytest.approx(hf.item(), rel=1e-5)
    np.testing.assert_allclose(gradient, student.grad.numpy(), rtol=1e-3, atol=1e-6)
