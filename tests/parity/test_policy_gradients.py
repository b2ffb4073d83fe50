"""Losses and gradients of policy gradients are TRL's, on the same weights, tokens and rewards.

TRL's own trainer makes advantages, log-probabilities of the sampling policy and of the reference,
ratios to the sampler and the loss; only what it would have generated is given to it.
"""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chat_tokenizer import write_chat_tokenizer
from numpy_state import numpy_state
from parity_pairs import assert_same_gradient, load_hf

from axcore.interop import to_hugging_face
from axcore.layers import whole_rows
from axcore.models import llama2
from axcore.module import functional
from axcore.rollouts.rollout import Rollout, batch_of
from axcore.tasks import (
    DAPO,
    GRPO,
    GSPO,
    RLOO,
    Advantage,
    Clip,
    DrGRPO,
    KLPenalty,
    PolicyGradient,
    SamplerCorrection,
)

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

MODEL = llama2("toy")
LENGTH = 16
PROMPTS = ((7, 8, 9), (20, 21, 22, 23, 24))
SIZES = (3, 6, 1, 8, 5, 5, 2, 7)
REWARDS = (1.0, 0.0, 0.25, 1.0, -2.0, 3.0, 3.0, 0.5)
GROUP = len(SIZES) // len(PROMPTS)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Returns three states of a model here and in transformers: now, when it sampled, before."""
    pytest.importorskip("trl", reason="run make parity")
    transformers = pytest.importorskip("transformers", reason="run make parity")
    folder, draw = tmp_path_factory.mktemp("policies"), np.random.default_rng(1)
    first = numpy_state(MODEL.build().param_specs())
    found = {}
    for name, spread in (("policy", 0.0), ("old", 0.05), ("reference", 0.3)):
        moved = lambda leaf, spread=spread: leaf * draw.uniform(1 - spread, 1 + spread, leaf.shape)  # noqa: E731
        state = jax.tree.map(lambda leaf, move=moved: jnp.asarray(move(leaf), jnp.float32), first)
        to_hugging_face(folder / name, MODEL, state)
        found[name] = state, load_hf(folder / name)[0].float()
    write_chat_tokenizer(folder / "tokenizer")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer" / "tokenizer.json"),
        eos_token="<|end|>",
        pad_token="<|turn|>",
    )
    return found, tokenizer


def completions():
    """Returns what was sampled, and log-probabilities some of which are far from the trainer's."""
    draw = np.random.default_rng(2)
    tokens = [draw.integers(0, 250, size).tolist() for size in SIZES]
    return tokens, [(-5.5 + draw.normal(0, 0.6, size)).tolist() for size in SIZES]


def hf_loss(kind, settings, models, folder, *, is_first=False, corrects=False):
    """Returns TRL's trainer after the backward pass of its loss, its loss and its inputs."""
    import datasets
    import trl

    states, tokenizer = models
    tokens, log_probs = completions()
    args = getattr(trl, f"{kind}Config")(
        output_dir=str(folder),
        per_device_train_batch_size=len(SIZES),
        num_generations=GROUP,
        num_iterations=1 if is_first else 2,  # of two, TRL keeps the sampling policy's own
        max_completion_length=max(SIZES),
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        **settings,
    )
    trainer = getattr(trl, f"{kind}Trainer")(
        model=copy.deepcopy(states["reference"][1]),  # TRL reads its reference from the same folder
        reward_funcs=lambda completions, **_: list(REWARDS),
        args=args,
        train_dataset=datasets.Dataset.from_list([{"prompt": "a"}]),
        processing_class=tokenizer,
    )
    trainer.model.eval()
    trainer.use_vllm = corrects
    prompts = [list(PROMPTS[row // GROUP]) for row in range(len(SIZES))]
    texts = [""] * len(SIZES)
    generated = (prompts, tokens, texts)
    if kind == "GRPO":
        generated = (prompts, tokens, None, texts, log_probs, None, None, None)
    trainer._generate = lambda prompts: generated
    trainer.model.load_state_dict(states["policy" if is_first else "old"][1].state_dict())
    inputs = trainer._generate_and_score_completions([{"prompt": "a"}] * len(SIZES))
    trainer.model.load_state_dict(states["policy"][1].state_dict())
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return trainer, float(loss), inputs


def our_batch(models, *, is_first=False):
    tokens, log_probs = completions()
    rows = [
        Rollout(
            prompt=PROMPTS[row // GROUP],
            tokens=tuple(tokens[row]),
            log_probs=tuple(log_probs[row]),
            is_ended=True,
            rewards={},
            reward=REWARDS[row],
            group=row // GROUP,
            sample=row % GROUP,
            weight_version=0,
        )
        for row in range(len(SIZES))
    ]
    return jax.tree.map(jnp.asarray, batch_of(rows, LENGTH, 257, ()))


def log_probs_of(name, models, batch, temperature):
    """Returns the log-probabilities of the policy that sampled, of `old`, or of the `reference`."""
    info = whole_rows(batch["tokens"], batch["token_mask"])
    inputs = batch["tokens"], batch["targets"], info, temperature
    state = models[0][name][0]
    (found, _), _ = functional(MODEL.build(), state, *inputs, method="log_probs_and_entropies")
    return found


def check(task, kind, settings, models, folder, **how):
    """Checks that loss and gradient are TRL's, and that neither is trivial."""
    trainer, wanted, _ = hf_loss(kind, settings, models, folder, **how)
    states, _ = models
    batch = our_batch(models)
    if not how.get("is_first"):
        batch["old_log_probs"] = log_probs_of("old", models, batch, task.temperature)
    made = task.build(model=MODEL)
    if made.records_reference:
        first = log_probs_of("reference", models, batch, task.temperature)
        recorded = jax.tree.map(np.asarray, {**batch, "reference_log_probs": first})
        batch = jax.tree.map(jnp.asarray, made.finish_batch(recorded))
    kept = {"reference": states["reference"][0]} if task.kl.coefficient else {}

    def loss(state):
        return functional(made, {**state, **kept}, batch)[1].total_loss()

    found, gradient = jax.jit(jax.value_and_grad(loss))(states["policy"][0])
    assert float(found) == pytest.approx(wanted, rel=3e-5, abs=2e-6)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradient)) > 1e-4
    assert_same_gradient(gradient, MODEL, trainer.model, folder / "axcore")


FREE = SamplerCorrection(max_ratio=None)
KL = KLPenalty(coefficient=0.2)
PAPER_KL = KLPenalty(coefficient=0.2, is_weighted_by_ratio=False)
NARROW = Clip(low=0.02, high=0.05)
BATCH = Advantage(scale="batch")


@pytest.mark.parametrize(
    ("loss_type", "task"),
    [
        ("grpo", GRPO.Config(sampler=FREE, clip=NARROW)),
        ("grpo", GRPO.Config(sampler=FREE, clip=NARROW, kl=KL, temperature=0.7)),
        ("grpo", GRPO.Config(sampler=FREE, clip=NARROW, advantage=BATCH)),
        ("bnpo", PolicyGradient.Config(sampler=FREE, clip=NARROW, mean_over="token")),
        ("dr_grpo", DrGRPO.Config(sampler=FREE, clip=NARROW, max_tokens=8, kl=KL)),
        ("grpo", GRPO.Config(sampler=FREE, clip=NARROW, kl=PAPER_KL)),
        ("dapo", DAPO.Config(sampler=FREE, clip=NARROW, entropy_bonus=0.3)),
        ("dr_grpo", DrGRPO.Config(sampler=FREE, max_tokens=8, entropy_bonus=0.3)),
        ("grpo", GSPO.Config(sampler=FREE)),
        ("grpo", GSPO.Config(sampler=FREE, clip=Clip(low=0.1, high=0.2, level="sequence"), kl=KL)),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__qualname__.split(".")[0],
)
def test_after_an_update(models, loss_type, task, tmp_path):
    settings = {
        "loss_type": loss_type,
        "importance_sampling_level": task.clip.level,
        "epsilon": task.clip.low,
        "epsilon_high": task.clip.high,
        "beta": task.kl.coefficient,
        "use_bias_correction_kl": task.kl.is_weighted_by_ratio,
        "scale_rewards": task.advantage.scale,
        "temperature": task.temperature,
        "entropy_coef": task.entropy_bonus,
    }
    check(task, "GRPO", settings, models, tmp_path)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_of_the_first_update(models, loss_type, tmp_path):
    task = (GRPO if loss_type == "grpo" else DAPO).Config(sampler=FREE)
    settings = {"loss_type": loss_type, "epsilon": 0.2, "epsilon_high": task.clip.high}
    check(task, "GRPO", settings, models, tmp_path, is_first=True)


@pytest.mark.parametrize(
    ("mode", "correction"),
    [
        ("token_truncate", SamplerCorrection(max_ratio=1.2)),
        ("token_mask", SamplerCorrection(max_ratio=1.2, above="drop")),
        ("sequence_truncate", SamplerCorrection(max_ratio=1.2, level="product")),
        ("sequence_mask", SamplerCorrection(max_ratio=1.2, level="product", above="drop")),
    ],
)
def test_corrected_for_the_sampler(models, mode, correction, tmp_path):
    task = GRPO.Config(sampler=correction, kl=KL)
    settings = {
        "loss_type": "grpo",
        "beta": 0.2,
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": mode,
        "vllm_importance_sampling_clip_max": correction.max_ratio,
    }
    check(task, "GRPO", settings, models, tmp_path, corrects=True)


@pytest.mark.parametrize("is_first", [True, False])
def test_rloo(models, is_first, tmp_path):
    task = RLOO.Config(sampler=FREE)
    check(task, "RLOO", {"epsilon": 0.2, "beta": 0.0}, models, tmp_path, is_first=is_first)


def test_rloo_with_a_penalty_off_the_reward(models, tmp_path):
    task = RLOO.Config(sampler=FREE, kl=KLPenalty(coefficient=0.2, form="k1"))
    check(task, "RLOO", {"epsilon": 0.2, "beta": 0.2}, models, tmp_path)
