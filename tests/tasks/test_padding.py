"""Padding counts for nothing: not its id, not its length, not rows of nothing else.

Each case is one way into a model with experts, whose routers add losses, a summary and a buffer.
What comes out, the gradient included, is compared between a small batch and the same texts in
longer rows, among rows of padding, with two ids for it.
"""

import functools
import json

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cache_law import CACHE_CONFIG
from numpy_state import numpy_state

from axcore.config import evolve, replace_config, update_config
from axcore.data import ChatFiles, ChatPairs, LabelledChats, PreferenceData
from axcore.data.packing.packing import PADDING_ROW, PackedRows, TokenStore
from axcore.data.packing.row_layout import row_layout
from axcore.errors import ModuleError
from axcore.inference.cached_model import CachedModel
from axcore.interop import HuggingFace
from axcore.layers import (
    CapacityLimited,
    Dropless,
    FeedForward,
    Fp8Delayed,
    Int8Dynamic,
    MoE,
    Router,
    ScalarHead,
)
from axcore.models import transformer
from axcore.modifiers.quantization import with_dot
from axcore.module import functional
from axcore.ops import KernelPolicy, use_policy
from axcore.plugins import Hardware, TrainingTask, plugin_host
from axcore.rollouts.rollout import Rollout, batch_of
from axcore.tasks import Distill, FrozenModel, KLPenalty, PolicyGradient

DENSE = transformer(vocab_size=264, dim=8, num_layers=1, num_heads=2, hidden_dim=8)
ROUTER = Router.Config(balance_loss=0.5, z_loss=0.1, bias_rate=0.01)
PAD_IDS = (0, 5)
POLICY = KernelPolicy(
    hardware=Hardware.parse("cpu-1"),
    pins={"quantized_dot": "emulated", "quantized_grouped_matmul": "emulated"},
)
WITH_GRADIENT = pytest.mark.parametrize(
    "gradient", [False, pytest.param(True, marks=pytest.mark.slow)]
)
CORE_TASKS = {
    one.name: one.config.resolve()
    for one in plugin_host().records(TrainingTask)
    if one.plugin == "core"
}
POLICY_TASKS = {
    name: one for name, one in CORE_TASKS.items() if issubclass(one, PolicyGradient.Config)
}
NOT_CAUSAL = {"contrastive", "flow_matching", "masked_tokens"}
"""Which train other models, and have tests of padding of their own."""
TASKS = {
    name: one for name, one in CORE_TASKS.items() if name not in POLICY_TASKS.keys() | NOT_CAUSAL
}
HEADS = {"reward_model": ScalarHead.Config()}
"""Of the tasks whose models give no logits."""


def experts(dispatch):
    moe = lambda ffn: MoE.Config(  # noqa: E731
        expert=ffn, num_experts=4, top_k=2, router=ROUTER, dispatch=dispatch
    )
    return replace_config(DENSE, FeedForward, moe)


MODEL = experts(Dropless.Config())
MODELS = {
    "dropless": MODEL,
    "capacity": experts(CapacityLimited.Config(factor=0.75)),
    "int8": with_dot(DENSE, Int8Dynamic.Config()),
    "float8": with_dot(experts(CapacityLimited.Config()), Fp8Delayed.Config()),
}


def texts(seq_len, rows, *, masks_documents=True, num_prompt=0):
    """Returns a batch of two documents, of which the first targets may count for nothing."""
    draw = np.random.default_rng(0)
    store = TokenStore.of([draw.integers(9, 264, size).astype(np.uint16) for size in (6, 9)])
    layout = row_layout(store, seq_len, "one_document", cache=None)
    packed = PackedRows(layout, seq_len=seq_len, pad_id=0, masks_documents=masks_documents)
    batch = packed.batch(rows)
    batch["loss_weights"][:, :num_prompt] = 0
    return batch


def labelled(folder, *, has_labels=False, has_targets=True):
    """Returns what makes batches of two labelled conversations."""
    answers = (
        {"completion": "4", "label": True} if has_labels else {"chosen": "4", "rejected": "5!"}
    )
    records = [{"prompt": "2+2?", **answers}, {"prompt": "1+1+1+1?", **answers}]
    path = folder / "labelled.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    reads = LabelledChats.Config() if has_labels else ChatPairs.Config()
    cfg = PreferenceData.Config(
        source=ChatFiles.Config(path=str(path), reads=reads),
        seq_len=48,
        batch_size=2,
        validation_fraction=0.0,
        has_targets=has_targets,
    )
    return lambda seq_len, rows: evolve(cfg, seq_len=seq_len).build()._rows[0].batch(rows)


def with_pad_id(batch, pad_id):
    mask = batch["segment_ids"] > 0 if "segment_ids" in batch else batch["token_mask"]
    names = [name for name in ("tokens", "targets") if name in batch]
    return batch | {name: np.where(mask, batch[name], pad_id) for name in names}


def assert_padding_counts_for_nothing(cfg, batch_of, length, *, gradient, training=True):
    """Compares all that comes out of a module: losses, summaries, buffers, maybe the gradient."""
    module = cfg.build()
    state = numpy_state(module.param_specs())
    for pad_id in PAD_IDS:  # no text has them; far from all others, they would show
        state["decoder"]["embedding"]["weight"][pad_id] = 9 * (np.arange(8) == pad_id)
    state = jax.tree.map(jnp.asarray, state)
    kept = module.kept_state(state, module.param_specs())

    def loss(state, batch):
        _, out = functional(module, {**state, **kept}, batch, training=training)
        return out.total_loss(), (out.losses, out.summaries, list(out.updates.values()))

    @jax.jit
    def run(batch):
        with use_policy(POLICY):
            if gradient:
                return jax.grad(loss, has_aux=True)(state, batch)
            return loss(state, batch)

    short = batch_of(length, (0, 1))
    padded = batch_of(length + 5, (PADDING_ROW, 0, 1, PADDING_ROW))
    wanted, *found = (
        jax.device_get(run(with_pad_id(batch, pad_id)))
        for batch in (short, padded)
        for pad_id in PAD_IDS
    )
    for one in found:
        jax.tree.map_with_path(assert_close, one, wanted)


def assert_close(path, found, wanted):
    bound = 1e-4 * np.abs(wanted).max(initial=0)
    np.testing.assert_allclose(
        found, wanted, rtol=1e-4, atol=bound, err_msg=jax.tree_util.keystr(path)
    )


def texts_as_one(seq_len, rows):
    return texts(seq_len, rows, masks_documents=False)


def answers(seq_len, rows):
    return texts(seq_len, rows, num_prompt=3)


@WITH_GRADIENT
@pytest.mark.quick_one_in(4)
@pytest.mark.every_case
@pytest.mark.parametrize("kind", MODELS)
def test_of_a_text(kind, gradient):
    assert_padding_counts_for_nothing(MODELS[kind], texts, 8, gradient=gradient)


@WITH_GRADIENT
@pytest.mark.quick_one_in(2)
@pytest.mark.every_case
@pytest.mark.parametrize("batch_of", [texts_as_one, answers])
def test_of_other_rows(batch_of, gradient):
    assert_padding_counts_for_nothing(MODEL, batch_of, 8, gradient=gradient)


@pytest.mark.slow
def test_of_an_evaluation():
    assert_padding_counts_for_nothing(MODEL, texts_as_one, 8, gradient=False, training=False)


@WITH_GRADIENT
@pytest.mark.quick_one_in(5)
@pytest.mark.every_case
@pytest.mark.parametrize("task", TASKS)
def test_of_labelled_answers(task, gradient, tmp_path):
    model = evolve(MODEL, head=HEADS.get(task, MODEL.head))
    cfg = evolve(TASKS[task](), model=model)
    batch_of = labelled(tmp_path, has_labels=task == "kto", has_targets=task not in HEADS)
    assert_padding_counts_for_nothing(cfg, batch_of, 48, gradient=gradient)


def rollouts(seq_len, rows, task):
    """Returns a batch of two completions of one prompt, with what the task recorded of them."""
    draw = np.random.default_rng(0)
    known, recorded = {}, task.recorded_arrays() if task.always_records else {}
    for sample, size in enumerate((3, 5)):
        tokens = draw.integers(9, 264, size)
        known[sample] = Rollout(
            prompt=(70, 71, 72),
            tokens=tuple(tokens.tolist()),
            log_probs=tuple(-5 - draw.random(size)),
            is_ended=True,
            rewards={"exact": sample / 2},
            reward=sample / 2,
            group=0,
            sample=sample,
            weight_version=0,
            recorded={
                name: draw.permuted(np.indices((size + 2, *one.shape))[-1], axis=-1)
                if one.shape
                else draw.normal(-5, 0.3, size + 2)
                for name, one in recorded.items()
            },
        )
    chosen = [None if row == PADDING_ROW else known[row] for row in rows]
    return task.finish_batch(batch_of(chosen, seq_len, 0, ("exact",), recorded=recorded))


@WITH_GRADIENT
@pytest.mark.quick_one_in(5)
@pytest.mark.every_case
@pytest.mark.parametrize("task", [*POLICY_TASKS, "grpo with routing_replay"])
def test_of_rollouts(task, gradient):
    name, _, replay = task.partition(" with ")
    # With a fixed divisor, as otherwise a mean over rows of a fixed length depends on that length.
    cfg = evolve(
        POLICY_TASKS[name](),
        model=MODEL,
        routing_replay=bool(replay),
        kl=KLPenalty(coefficient=0.1),
        entropy_bonus=0.1,
        max_tokens=8,
    )
    batch_of = functools.partial(rollouts, task=cfg.build())
    assert_padding_counts_for_nothing(cfg, batch_of, 9, gradient=gradient)


def test_of_a_student():
    teacher = FrozenModel.Config(model=DENSE, init_from=HuggingFace.Config(path="none"))
    cfg = Distill.Config(teacher=teacher, model=MODEL, beta=0.5, cross_entropy_weight=0.5)
    assert_padding_counts_for_nothing(cfg, answers, 8, gradient=False)


@pytest.mark.slow
def test_of_a_prompt_that_is_read_to_serve():
    served = CachedModel(
        MODEL.build(), MODEL.build().init(0), attrs.evolve(CACHE_CONFIG, num_rows=4)
    )
    tokens = np.random.default_rng(0).integers(9, 264, (4, 8))

    def logits(length, sizes, pad_id):
        given = np.full((4, length), pad_id, np.int32)
        for row, size in enumerate(sizes):
            given[row, :size] = tokens[row, :size]
        found, _ = served.extend(
            served.weights, served.empty_caches(), given, np.zeros(4, np.int32), np.array(sizes)
        )
        return found[:2]

    wanted, *found = (
        logits(n, sizes, pad)
        for n, sizes, pad in ((8, [5, 8, 8, 8], 0), (8, [5, 8, 0, 0], 5), (12, [5, 8, 0, 3], 0))
    )
    for one in found:
        np.testing.assert_allclose(one, wanted, rtol=1e-5, atol=1e-6)


def test_of_attention_that_sees_what_follows():
    cfg = update_config(DENSE, {"**.is_causal": False})
    assert_padding_counts_for_nothing(cfg, texts_as_one, 8, gradient=False)


def test_logits_in_training_are_refused_without_what_says_where_padding_is():
    model = MODEL.build()
    with pytest.raises(ModuleError, match="without a TokenInfo") as caught:
        functional(
            model, model.init(0), jnp.zeros((1, 4), jnp.int32), method="logits", training=True
        )
    assert "packed_rows(batch)" in caught.value.hint
