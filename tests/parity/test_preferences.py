"""Losses and gradients of objectives on preferences are TRL's, on the same tiny weights."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chat_tokenizer import write_chat_tokenizer
from numpy_state import numpy_state
from parity_pairs import assert_same_gradient, load_hf

from axcore.interop import to_hugging_face
from axcore.models import llama2
from axcore.module import functional
from axcore.tasks import DPO, IPO, KTO, ORPO, SimPO

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

MODEL = llama2("toy")
WORDS = ("a bird", "the sea", "no", "twelve stones and a half", "yes, of course", "x")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Two states of a model, here and in transformers, with a tokenizer."""
    pytest.importorskip("trl", reason="run make parity")
    transformers = pytest.importorskip("transformers", reason="run make parity")
    folder = tmp_path_factory.mktemp("preferences")
    draw = np.random.default_rng(1)
    first = numpy_state(MODEL.build().param_specs())
    moved = jax.tree.map(lambda leaf: leaf * draw.uniform(0.6, 1.4, leaf.shape), first)
    states = [
        jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), one) for one in (first, moved)
    ]
    hf = []
    for name, state in zip(("policy", "reference"), states, strict=True):
        to_hugging_face(folder / name, MODEL, state)
        hf.append(load_hf(folder / name)[0].float())
    write_chat_tokenizer(folder / "tokenizer")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer" / "tokenizer.json"),
        eos_token="<|end|>",
        pad_token="<|end|>",
    )
    return states, hf, tokenizer


def pairs():
    import datasets

    rows = [
        {"prompt": f"say {n}: ", "chosen": WORDS[n], "rejected": WORDS[-n - 1]} for n in (0, 1, 3)
    ]
    return datasets.Dataset.from_list(rows)


def trainer_of(kind, settings, both, folder, rows, *, has_reference=True):
    _, (policy, reference), tokenizer = both
    args = settings(
        output_dir=str(folder),
        per_device_train_batch_size=len(rows),
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dataset_num_proc=None,
    )
    models = {"ref_model": copy.deepcopy(reference)} if has_reference else {}
    made = kind(
        model=copy.deepcopy(policy),
        args=args,
        train_dataset=rows,
        processing_class=tokenizer,
        **models,
    )
    made.model.eval()
    return made


def batch_of(inputs, order):
    """Returns our batch of TRL's, whose rows are `order` of axcore's."""
    tokens, counts = (inputs[name].numpy()[order] for name in ("input_ids", "completion_mask"))
    found = {
        "tokens": tokens[..., :-1].astype(np.int32),
        "targets": tokens[..., 1:].astype(np.int32),
        "token_mask": np.ones(counts[..., 1:].shape, bool),
        "loss_weights": counts[..., 1:].astype(np.float32),
        "row_weights": np.ones(len(tokens), np.float32),
    }
    return jax.tree.map(jnp.asarray, found)


def check(task, batch, both, hf, trainer, folder):
    """Checks that loss and gradient are the same."""
    (policy, reference), _, _ = both
    made = task.build(model=MODEL)

    def loss(state):
        kept = {"reference": reference} if made.has_reference else {}
        return functional(made, {**state, **kept}, batch)[1].total_loss()

    axcore, gradient = jax.jit(jax.value_and_grad(loss))(policy)
    assert float(axcore) == pytest.approx(hf.item(), rel=2e-5)
    hf.backward()
    assert_same_gradient(gradient, MODEL, trainer.model, folder / "axcore")


@pytest.mark.parametrize(
    ("loss_type", "task"),
    [("sigmoid", DPO.Config(beta=0.3)), ("ipo", IPO.Config(beta=0.3))],
)
def test_dpo_and_ipo(both, loss_type, task, tmp_path):
    from trl import DPOConfig, DPOTrainer

    def settings(**common):
        return DPOConfig(beta=0.3, loss_type=[loss_type], max_length=None, **common)

    trainer = trainer_of(DPOTrainer, settings, both, tmp_path, pairs())
    inputs = next(iter(trainer.get_train_dataloader()))
    size = len(inputs["input_ids"]) // 2
    order = np.stack([np.arange(size), np.arange(size) + size], axis=1)
    loss = trainer.compute_loss(trainer.model, inputs)
    check(task, batch_of(inputs, order), both, loss, trainer, tmp_path)


def labelled(inputs):
    """Returns our batch of one whose answers have labels, -100 where nothing counts."""
    length = max(inputs[f"{one}_labels"].shape[1] for one in ("chosen", "rejected"))

    def stacked(name, fill):
        arrays = [inputs[f"{one}_{name}"].numpy() for one in ("chosen", "rejected")]
        widths = [((0, 0), (0, length - array.shape[1])) for array in arrays]
        padded = [
            np.pad(one, width, constant_values=fill)
            for one, width in zip(arrays, widths, strict=True)
        ]
        return np.stack(padded, axis=1)

    labels = stacked("labels", -100)
    return labels, batch_of(
        {
            "input_ids": as_torch(stacked("input_ids", 0)),
            "completion_mask": as_torch(labels != -100),
        },
        np.arange(len(labels)),
    )


def as_torch(array):
    import torch

    return torch.tensor(array)


def test_simpo(both, tmp_path):
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    def settings(**common):
        return CPOConfig(beta=2.5, simpo_gamma=0.4, loss_type="simpo", cpo_alpha=0.0, **common)

    trainer = trainer_of(CPOTrainer, settings, both, tmp_path, pairs(), has_reference=False)
    inputs = next(iter(trainer.get_train_dataloader()))
    loss, _ = trainer.get_batch_loss_metrics(trainer.model, inputs)
    check(SimPO.Config(beta=2.5, gamma=0.4), labelled(inputs)[1], both, loss, trainer, tmp_path)


def test_orpo_but_for_the_prompt_in_its_cross_entropy(both, tmp_path):
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    def settings(**common):
        return ORPOConfig(beta=0.7, **common)

    trainer = trainer_of(ORPOTrainer, settings, both, tmp_path, pairs(), has_reference=False)
    inputs = next(iter(trainer.get_train_dataloader()))
    chosen, rejected = trainer.concatenated_forward(trainer.model, inputs)[:2]
    labels, batch = labelled(inputs)
    counts = as_torch((labels[:, 0, 1:] != -100).sum(axis=1))
    cross_entropy = -(chosen * counts).sum() / counts.sum()
    loss = cross_entropy - trainer.odds_ratio_loss(chosen, rejected)[0].mean()
    check(ORPO.Config(beta=0.7), batch, both, loss, trainer, tmp_path)


def test_kto(both, tmp_path):
    import datasets
    from trl import KTOConfig, KTOTrainer

    rows = datasets.Dataset.from_list(
        [
            {"prompt": f"say {n}: ", "completion": WORDS[n], "label": n != 1}
            for n in range(len(WORDS))
        ]
    )

    def settings(**common):
        weights = {"desirable_weight": 1.5, "undesirable_weight": 0.5}
        return KTOConfig(beta=0.3, max_length=None, **weights, **common)

    trainer = trainer_of(KTOTrainer, settings, both, tmp_path, rows)
    inputs = next(iter(trainer.get_train_dataloader()))
    length = max(inputs[name].shape[1] for name in ("input_ids", "KL_input_ids"))

    def both_of(name):
        arrays = [inputs[f"{prefix}{name}"].numpy() for prefix in ("", "KL_")]
        widths = [((0, 0), (0, length - one.shape[1])) for one in arrays]
        return as_torch(np.concatenate([np.pad(*one) for one in zip(arrays, widths, strict=True)]))

    size = len(inputs["label"])
    order = np.stack([np.arange(size), np.arange(size) + size], axis=1)
    names = ("input_ids", "completion_mask")
    batch = batch_of({name: both_of(name) for name in names}, order)
    is_good = jnp.asarray(inputs["label"].numpy(), jnp.float32)
    loss = trainer.compute_loss(trainer.model, inputs)
    task = KTO.Config(beta=0.3, good_weight=1.5, bad_weight=0.5)
    check(task, {**batch, "is_good": is_good}, both, loss, trainer, tmp_path)
