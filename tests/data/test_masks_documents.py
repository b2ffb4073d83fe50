"""Rows without document masks: the same tokens, read as one text, by plain causal kernels."""

import jax
import numpy as np
import pytest

from axcore.config import evolve
from axcore.data import Data
from axcore.data.packing.packing import PackedRows, TokenStore
from axcore.data.packing.row_layout import Concatenated
from axcore.experiments.pretraining import llama2_7b
from axcore.models import transformer
from axcore.module import functional
from axcore.ops import recording_choices
from axcore.plugins import Hardware
from axcore.trainer import Trainer, resolve

SEQ_LEN = 16


def rows_of(lengths, **fields):
    """Returns all rows of documents of random tokens."""
    tokens = np.random.default_rng(0).integers(0, 64, sum(lengths)).astype(np.uint16)
    store = TokenStore.of(np.split(tokens, np.cumsum(lengths)[:-1]))
    rows = PackedRows(Concatenated(store, SEQ_LEN), seq_len=SEQ_LEN, pad_id=0, **fields)
    return rows.batch(range(len(rows)))


@jax.jit
def loss_of(batch):
    cfg = transformer(
        vocab_size=64, dim=16, num_layers=1, num_heads=2, num_kv_heads=2, hidden_dim=24
    )
    model = cfg.build()
    (total, weight), _ = functional(model, model.init(0), batch)
    return total / weight


def test_tokens_and_targets_are_those_of_masked_rows_and_positions_count_the_row():
    masked, whole = rows_of([9, 21, 2, 40]), rows_of([9, 21, 2, 40], masks_documents=False)
    assert set(masked) - set(whole) == {"segment_ids"}
    np.testing.assert_array_equal(whole["token_mask"], masked["segment_ids"] > 0)
    for name in ("tokens", "targets", "loss_weights"):
        np.testing.assert_array_equal(masked[name], whole[name])
    real = whole["loss_weights"] == 1
    counted = np.broadcast_to(np.arange(SEQ_LEN), real.shape)
    np.testing.assert_array_equal(whole["positions"][real], counted[real])


@pytest.mark.slow
def test_only_rows_of_one_document_each_have_the_same_loss_either_way():
    """The last is padded, which causal attention never looks at."""
    for lengths, is_same in (([17, 17, 12], True), ([9, 21, 2, 15], False)):
        masked, whole = rows_of(lengths), rows_of(lengths, masks_documents=False)
        assert bool(masked["segment_ids"].max() == 1) is is_same
        losses = float(loss_of(masked)), float(loss_of(whole))
        assert (losses[0] == pytest.approx(losses[1], rel=1e-5)) is is_same


def test_a_batch_spec_is_of_the_arrays_that_rows_have():
    for masks in (True, False):
        cfg = Data.Config(seq_len=SEQ_LEN, batch_size=2, masks_documents=masks)
        batch = rows_of([9, 21], masks_documents=masks)
        spec = cfg.build().batch_spec().arrays
        assert {name: array.dtype for name, array in batch.items()} == {
            name: np.dtype(one.dtype) for name, one in spec.items()
        }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("masks", "kernel"), [(True, "gpu_packed_flash_attention"), (False, "cudnn_attention")]
)
def test_without_masks_a_plain_causal_kernel_serves(masks, kernel):
    data = evolve(llama2_7b().data.for_shapes(), masks_documents=masks)
    cfg = evolve(llama2_7b(), kernel_choice="fastest", data=data)
    trainer = Trainer(resolve(cfg, Hardware.parse("gpu-h100-8")), devices=jax.devices()[:8])
    compiler = trainer.compiler
    with jax.set_mesh(trainer.mesh), recording_choices() as choices:
        compiler.jitted_step.trace(compiler.abstract_state(), trainer.batch_sharding.abstract())
    (choice,) = {choice for choice in choices if choice.call.op == "attention"}
    assert choice.kernel.name == kernel
    assert choice.call.has("q_segments") is masks
