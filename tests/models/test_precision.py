"""A bfloat16 compute policy: float32 where it is kept, bfloat16 where it is fast."""

import jax
import numpy as np
import pytest

from axcore.config import evolve
from axcore.layers import TokenInfo
from axcore.module import DTypes, functional


@pytest.fixture(scope="module")
def narrow(cfg):
    return evolve(cfg, dtypes=DTypes(compute="bfloat16"))


@pytest.mark.slow
def test_state_and_gradients_stay_float32_and_the_loss_stays_close(run, cfg, narrow, batch):
    state = run.state(cfg)
    got, expected = run(narrow, state, batch), run(cfg, state, batch)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(got["gradient"])} == {"float32"}
    assert got["logits"].dtype == np.float32
    assert got["total"] == pytest.approx(float(expected["total"]), rel=2e-2)
    assert got["total"] != expected["total"]
    flat = lambda tree: np.concatenate([x.ravel() for x in jax.tree.leaves(tree)])  # noqa: E731
    ours, theirs = flat(got["gradient"]), flat(expected["gradient"])
    cosine = ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs)
    assert cosine > 0.999


def test_activations_between_layers_are_bfloat16(narrow, batch):
    module = narrow.build()

    def captured(tokens, positions, segments):
        _, outputs = functional(
            module,
            module.init(0),
            tokens,
            TokenInfo(positions, segments),
            method="logits",
            capture=("decoder.stack.layer", "decoder.embedding", "**.attention.position"),
        )
        return outputs.captures

    shapes = jax.eval_shape(captured, *(batch[k] for k in ("tokens", "positions", "segment_ids")))
    leaves = jax.tree.leaves(shapes)  # the position gives queries and keys
    assert len(leaves) == 4
    assert {leaf.dtype.name for leaf in leaves} == {"bfloat16"}
