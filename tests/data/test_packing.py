"""Packing loses nothing, repeats nothing and never looks over the edge of a document."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from axcore.config import evolve, update_config
from axcore.data import Data
from axcore.data.packing.packing import PADDING_ROW, PackedRows, TokenStore
from axcore.data.packing.row_layout import Concatenated
from axcore.experiments.pretraining import llama2_7b
from axcore.models import transformer
from axcore.module import functional
from axcore.ops import recording_choices
from axcore.plugins import Hardware
from axcore.trainer import Trainer, resolve

PAD = 999

# Every token is different, so that a token says where it came from.
lengths = st.lists(st.integers(1, 40), min_size=1, max_size=12).filter(
    lambda drawn: any(n > 1 for n in drawn)
)
law = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def documents_of(lengths):
    bounds = np.cumsum([0, *lengths])
    return [np.arange(a, b, dtype=np.uint16) for a, b in itertools.pairwise(bounds)]


def packed(documents, seq_len):
    layout = Concatenated(TokenStore.of(documents), seq_len)
    rows = PackedRows(layout, seq_len=seq_len, pad_id=PAD)
    return rows, rows.batch(range(len(rows)))


def segments(batch):
    """Yields (tokens, targets, positions) of each segment of each row, in order."""
    for row in range(len(batch["tokens"])):
        ids = batch["segment_ids"][row]
        for segment in range(1, ids.max() + 1):
            here = ids == segment
            yield tuple(batch[name][row][here] for name in ("tokens", "targets", "positions"))


@given(lengths, st.integers(1, 50))
@law
def test_rows_hold_every_pair_of_every_document_once_and_in_order(lengths, seq_len):
    documents = documents_of(lengths)
    _, batch = packed(documents, seq_len)
    real = batch["loss_weights"] == 1
    pairs = list(zip(batch["tokens"][real], batch["targets"][real], strict=True))
    assert pairs == [pair for document in documents for pair in itertools.pairwise(document)]


@given(lengths, st.integers(1, 50))
@law
def test_first_tokens_and_targets_spell_the_documents(lengths, seq_len):
    documents = documents_of(lengths)
    _, batch = packed(documents, seq_len)
    firsts = {int(document[0]) for document in documents}
    spelled = []
    for tokens, targets, _ in segments(batch):
        if int(tokens[0]) in firsts:
            spelled.append([int(tokens[0])])
        spelled[-1].extend(targets.tolist())
    assert spelled == [document.tolist() for document in documents if len(document) > 1]


@given(lengths, st.integers(1, 50))
@law
def test_a_segment_holds_one_document_and_its_positions_start_at_zero(lengths, seq_len):
    documents = documents_of(lengths)
    owner = {int(token): i for i, document in enumerate(documents) for token in document}
    _, batch = packed(documents, seq_len)
    for tokens, targets, positions in segments(batch):
        assert len({owner[int(token)] for token in (*tokens, *targets)}) == 1
        assert positions.tolist() == list(range(len(tokens)))


@given(lengths, st.integers(1, 50))
@law
def test_only_the_end_of_the_last_row_is_padding(lengths, seq_len):
    rows, batch = packed(documents_of(lengths), seq_len)
    num_pairs = sum(n - 1 for n in lengths)
    assert len(rows) == -(-num_pairs // seq_len)
    is_real = np.arange(len(rows) * seq_len).reshape(len(rows), seq_len) < num_pairs
    np.testing.assert_array_equal(batch["loss_weights"], is_real.astype(np.float32))
    np.testing.assert_array_equal(batch["segment_ids"] > 0, is_real)
    for name, value in (("tokens", PAD), ("targets", PAD), ("positions", 0)):
        assert (batch[name][~is_real] == value).all()


@given(lengths, st.integers(1, 50), st.data())
@law
def test_a_row_does_not_depend_on_the_rows_beside_it(lengths, seq_len, data):
    rows, batch = packed(documents_of(lengths), seq_len)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=6))
    some = rows.batch(chosen)
    for name in batch:
        np.testing.assert_array_equal(some[name], batch[name][chosen])


def test_packing_of_two_short_documents_and_a_long_one():
    documents = [np.array(d, np.uint8) for d in ([1, 2, 3], [4, 5], [6, 7, 8, 9, 10])]
    _, batch = packed(documents, 4)
    assert {name: batch[name].tolist() for name in batch} == {
        "tokens": [[1, 2, 4, 6], [7, 8, 9, PAD]],
        "targets": [[2, 3, 5, 7], [8, 9, 10, PAD]],
        "loss_weights": [[1, 1, 1, 1], [1, 1, 1, 0]],
        "segment_ids": [[1, 1, 2, 3], [1, 1, 1, 0]],
        "positions": [[0, 1, 0, 0], [0, 1, 2, 0]],
    }
    assert {name: batch[name].dtype.name for name in batch} == {
        "tokens": "int32",
        "targets": "int32",
        "loss_weights": "float32",
        "segment_ids": "int32",
        "positions": "int32",
    }


def test_a_padding_row_holds_no_segment_and_no_loss():
    rows, _ = packed(documents_of([5]), 4)
    batch = rows.batch([PADDING_ROW, 0])
    assert not batch["loss_weights"][0].any()
    assert not batch["segment_ids"][0].any()
    assert (batch["tokens"][0] == PAD).all()
    assert batch["loss_weights"][1].all()


def test_a_document_of_one_token_is_not_kept():
    store = TokenStore.of(documents_of([1, 3, 1]))
    assert store.num_documents == 1
    assert store.tokens.tolist() == [1, 2, 3]


@pytest.mark.parametrize("other", [[[0, 1, 2], [3, 5]], [[0, 1], [2, 3, 4]], [[0, 1, 2, 3, 4]]])
def test_digest_tells_tokens_and_boundaries_apart(other):
    def store(documents):
        return TokenStore.of([np.array(document, np.uint8) for document in documents])

    assert store([[0, 1, 2], [3, 4]]).digest == store([[0, 1, 2], [3, 4]]).digest
    assert store([[0, 1, 2], [3, 4]]).digest != store(other).digest


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
    cfg = update_config(llama2_7b(), {"kernels.choice": "fastest", "data": data})
    trainer = Trainer(resolve(cfg, Hardware.parse("gpu-h100-8")), devices=jax.devices()[:8])
    compiler = trainer.compiler
    with jax.set_mesh(trainer.mesh), recording_choices() as choices:
        compiler.jitted_step.trace(compiler.abstract_state(), trainer.batch_sharding.abstract())
    (choice,) = {choice for choice in choices if choice.call.op == "attention"}
    assert choice.kernel.name == kernel
    assert choice.call.has("q_segments") is masks
