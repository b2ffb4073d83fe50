"""Multi-token prediction: the paper's formula, and the laws of a batch for its losses."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.config import evolve, find_config, update_config
from axcore.errors import ConfigError
from axcore.hardware import Hardware
from axcore.inference.cached_model import CachedModel
from axcore.layers import KVCacheConfig, LoRALinear
from axcore.layers import whole_rows as info_of_rows
from axcore.models import MultiTokenLM
from axcore.modifiers import LoRA, MultiTokenPrediction
from axcore.module import functional
from axcore.testing import small_experiment, trainer_on

CPU = Hardware.parse("cpu-1")


@pytest.fixture(scope="module")
def ahead(cfg):
    return MultiTokenPrediction(depth=2, weight=0.5).apply(cfg, CPU)


def sums(losses):
    return {name: (float(loss.sum), float(loss.weight)) for name, loss in losses.items()}


def test_losses_are_those_of_the_formula(run, ahead, whole_rows):
    """Each depth is computed document by document, and token by token, of the model's parts."""
    state, model = jax.tree.map(jnp.asarray, run.state(ahead)), run.module(ahead)
    tokens = np.random.default_rng(1).integers(0, 17, (2, 8))
    batch = whole_rows(tokens)
    found = sums(run(ahead, state, batch)["losses"])
    info = info_of_rows(jnp.asarray(batch["tokens"]))
    decoder, head = state["decoder"], state["head"]["weight"]
    hidden, _ = functional(model.decoder, decoder, jnp.asarray(batch["tokens"]), info)
    table = decoder["embedding"]["weight"]
    for depth in (1, 2):
        # Behind the end of a row the token does not matter: no loss counts what is there.
        following = np.roll(tokens, -depth, axis=1)
        block, own = model.blocks[depth - 1], state["blocks"][str(depth - 1)]
        hidden, x = functional(block, own, hidden, table[following], info)[0]
        logits = np.asarray(x @ head.T, np.float64)
        log_probs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        pairs = [
            (row, place) for row in range(2) for place in range(8 - depth - 1)
        ]  # of which both the token that is read and the one that is predicted are in the row
        total = -sum(log_probs[row, i, tokens[row, i + depth + 1]] for row, i in pairs)
        assert found[f"token_{depth + 1}"] == pytest.approx((total, len(pairs)), rel=1e-5)


def test_a_depth_counts_for_its_share_of_the_weight(run, ahead, batch):
    losses = run(ahead, run.state(ahead), batch)["losses"]
    assert list(losses) == ["cross_entropy", "token_2", "token_3"]
    assert [loss.scale for loss in losses.values()] == [1.0, 0.25, 0.25]
    assert [loss.is_regularizer for loss in losses.values()] == [False, True, True]


def test_packed_documents_equal_the_documents_alone(run, ahead, batch):
    state = run.state(ahead)
    alone = {name: np.zeros_like(values) for name, values in batch.items()}
    for row, columns in enumerate((slice(0, 3), slice(3, 8))):
        length = columns.stop - columns.start
        for name, values in batch.items():
            alone[name][row, :length] = values[0, columns]
    only_first = {**batch, "loss_weights": batch["loss_weights"] * np.float32([[1], [0]])}
    packed, apart = (sums(run(ahead, state, one)["losses"]) for one in (only_first, alone))
    for name, pair in packed.items():
        assert apart[name] == pytest.approx(pair, rel=1e-5)
    assert packed["token_2"][1] == 4.5  # of documents of 3 and 5 tokens, by weights of targets
    assert packed["token_3"][1] == 2.5


def test_padding_changes_neither_loss_nor_gradient(run, ahead, batch):
    state = run.state(ahead)
    filled = {name: values.copy() for name, values in batch.items()}
    filled["tokens"][1, 6:], filled["targets"][1, 6:] = [3, 4], [5, 6]
    before, after = run(ahead, state, batch), run(ahead, state, filled)
    np.testing.assert_array_equal(before["total"], after["total"])
    jax.tree.map(np.testing.assert_array_equal, before["gradient"], after["gradient"])


def test_logits_are_those_of_the_model_alone(run, cfg, ahead, batch):
    state = run.state(ahead)
    alone = {name: part for name, part in state.items() if name != "blocks"}
    np.testing.assert_array_equal(
        run(ahead, state, batch)["logits"], run(cfg, alone, batch)["logits"]
    )


def test_it_is_applied_once_to_a_language_model(cfg, ahead):
    assert type(ahead) is MultiTokenLM.Config
    assert evolve(ahead, depth=1).blocks == ahead.blocks
    with pytest.raises(ConfigError, match="contains no plain CausalLM"):
        MultiTokenPrediction().apply(ahead, CPU)


def test_adapters_leave_new_layers_to_be_trained(tmp_path):
    cfg = small_experiment(tmp_path / "text")
    both = LoRA(rank=2).apply(MultiTokenPrediction().apply(cfg, CPU), CPU)
    assert "blocks.**" in both.learner.trainable
    assert not find_config(both.model.blocks, LoRALinear)
    assert find_config(both.model.decoder, LoRALinear)
    with pytest.raises(ConfigError, match="new layers would stay at random numbers"):
        MultiTokenPrediction().apply(LoRA(rank=2).apply(cfg, CPU), CPU)


def test_a_server_leaves_the_layers_out(cfg, ahead):
    model = ahead.build()
    room = KVCacheConfig(num_rows=1, capacity=16, max_length=16)
    served = CachedModel(model, model.init(0), room)
    alone = CachedModel(cfg.build(), cfg.build().init(0), room)
    assert jax.tree.structure(served.weights) == jax.tree.structure(alone.weights)
    assert served.cache_bytes == alone.cache_bytes


@pytest.mark.slow
def test_what_is_further_ahead_is_learned_and_reported(tmp_path):
    cfg = update_config(small_experiment(tmp_path / "text"), {"max_steps": 40, "**.peak": 0.02})
    cfg = MultiTokenPrediction().apply(cfg, CPU)
    trainer_on(cfg, 1).run(tmp_path / "run", quiet=True)
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    first, *_, last = (one for one in lines if "loss/token_2" in one)
    assert last["loss/token_2"] < first["loss/token_2"] - 0.5
    assert last["loss"] == pytest.approx(last["loss/cross_entropy"])
