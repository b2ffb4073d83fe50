"""Laws of a causal language model: causality, packing, padding, and weights that add up."""

import jax
import numpy as np


def test_later_tokens_change_nothing_earlier(run, cfg, whole_rows):
    state = run.state(cfg)
    tokens = np.random.default_rng(0).integers(0, 17, (2, 8))
    changed = tokens.copy()
    changed[:, 5:] = (changed[:, 5:] + 1) % 17
    before, after = (run(cfg, state, whole_rows(rows))["logits"] for rows in (tokens, changed))
    np.testing.assert_array_equal(before[:, :5], after[:, :5])
    assert np.all(np.abs(before[:, 5:] - after[:, 5:]).max(-1) > 1e-4)


def test_packed_documents_equal_the_documents_alone(run, cfg, batch):
    """Row 0 holds two documents; each is run in a row of its own, padded to the same length."""
    state = run.state(cfg)
    packed = run(cfg, state, batch)
    alone = {name: np.zeros_like(values) for name, values in batch.items()}
    for row, columns in enumerate((slice(0, 3), slice(3, 8))):
        length = columns.stop - columns.start
        for name, values in batch.items():
            alone[name][row, :length] = values[0, columns]
    got = run(cfg, state, alone)
    np.testing.assert_allclose(got["logits"][0, :3], packed["logits"][0, :3], atol=1e-5)
    np.testing.assert_allclose(got["logits"][1, :5], packed["logits"][0, 3:], atol=1e-5)
    only_first = {**batch, "loss_weights": batch["loss_weights"] * [[1], [0]]}
    only_first["loss_weights"] = only_first["loss_weights"].astype(np.float32)
    expected = run(cfg, state, only_first)
    np.testing.assert_allclose(got["pair"], expected["pair"], rtol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
        got["gradient"],
        expected["gradient"],
    )


def test_padding_changes_neither_loss_nor_gradient(run, cfg, batch):
    state = run.state(cfg)
    filled = {name: values.copy() for name, values in batch.items()}
    filled["tokens"][1, 6:] = [3, 4]
    filled["targets"][1, 6:] = [5, 6]
    filled["positions"][1, 6:] = [7, 9]
    before, after = run(cfg, state, batch), run(cfg, state, filled)
    np.testing.assert_array_equal(before["total"], after["total"])
    jax.tree.map(np.testing.assert_array_equal, before["gradient"], after["gradient"])


def test_sums_of_parts_of_a_batch_add_up(run, cfg, batch):
    state = run.state(cfg)
    whole = run(cfg, state, batch)
    parts = []
    for row in range(2):
        keep = np.zeros((2, 1), np.float32)
        keep[row] = 1.0
        parts.append(run(cfg, state, {**batch, "loss_weights": batch["loss_weights"] * keep}))
    np.testing.assert_allclose(
        whole["pair"], np.sum([part["pair"] for part in parts], axis=0), rtol=1e-6
    )
    weighted = [
        jax.tree.map(lambda g, part=part: g * part["pair"][1], part["gradient"]) for part in parts
    ]
    jax.tree.map(
        lambda a, b, c: np.testing.assert_allclose(
            a * whole["pair"][1], b + c, rtol=1e-3, atol=1e-4
        ),
        whole["gradient"],
        *weighted,
    )


def test_loss_is_reported_under_its_path(run, cfg, batch):
    got = run(cfg, run.state(cfg), batch)
    (loss,) = got["losses"].values()
    assert list(got["losses"]) == ["cross_entropy"]
    np.testing.assert_array_equal([loss.sum, loss.weight], got["pair"])


def test_batch_without_weight_has_no_loss_and_no_gradient(run, cfg, batch):
    empty = {**batch, "loss_weights": np.zeros_like(batch["loss_weights"])}
    got = run(cfg, run.state(cfg), empty)
    assert got["total"] == 0.0
    assert all(not leaf.any() for leaf in jax.tree.leaves(got["gradient"]))
