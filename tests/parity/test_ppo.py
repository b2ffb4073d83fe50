"""The loss and gradients of PPO are TRL's, on the same weights, tokens and rewards.

TRL had a PPO trainer up to 1.10, in `trl.experimental.ppo`, and 1.16 has none. Its `train` is one
method, so what it computes between sampling and the backward pass is repeated here, line by line,
from `ppo_trainer.py` of 1.10.0.dev0 (Apache License 2.0). Advantages of completions of unequal
length are compared with those of verl 0.10, since TRL gives a completion's reward to the place
after its last token where a row has one.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state
from parity_pairs import assert_same_gradient, load_hf

from axcore.interop import to_hugging_face
from axcore.models import llama2
from axcore.module import functional
from axcore.rollouts.rollout import Rollout, batch_of
from axcore.tasks import GAE, PPO, Clip, KLPenalty, SamplerCorrection, ValueLoss
from axcore.tasks.ppo import generalized_advantages, whitened

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

MODEL = llama2("toy")
LENGTH, SIZE, PAD = 16, 8, 263
PROMPTS = ((7, 8, 9), (20, 21, 22, 23, 24))
REWARDS = (1.0, -2.0, 0.25, 3.0)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Returns model, value head and transformers' model: now, when it sampled, before training."""
    pytest.importorskip("transformers", reason="run make parity")
    folder, draw = tmp_path_factory.mktemp("policies"), np.random.default_rng(1)
    first, found = numpy_state(MODEL.build().param_specs()), {}
    for name, spread in (("policy", 0.0), ("old", 0.05), ("reference", 0.3)):
        moved = lambda leaf, spread=spread: leaf * draw.uniform(1 - spread, 1 + spread, leaf.shape)  # noqa: E731
        state = jax.tree.map(lambda leaf, move=moved: jnp.asarray(move(leaf), jnp.float32), first)
        to_hugging_face(folder / name, MODEL, state)
        head = jnp.asarray(draw.normal(0, 0.2, (1, MODEL.dim)), jnp.float32)
        found[name] = state, head, load_hf(folder / name)[0].float()
    return found


def completions():
    draw = np.random.default_rng(2)
    return [draw.integers(0, 250, SIZE).tolist() for _ in REWARDS]


def hf_outputs(model, head, temperature):
    """Returns logits and values of the completions, as TRL's `forward` computes them."""
    import torch

    longest = max(map(len, PROMPTS))
    rows = [
        [PAD] * (longest - len(prompt)) + [*prompt, *tokens]
        for prompt, tokens in zip([PROMPTS[0]] * 2 + [PROMPTS[1]] * 2, completions(), strict=True)
    ]
    rows = torch.tensor(rows)
    attention_mask = rows != PAD
    position_ids = attention_mask.cumsum(1) - attention_mask.long()
    output = model(
        input_ids=torch.masked_fill(rows, ~attention_mask, 0),
        attention_mask=attention_mask,
        position_ids=position_ids,
        output_hidden_states=True,
    )
    logits = output.logits[:, longest - 1 : -1] / (temperature + 1e-7)
    values = (output.hidden_states[-1] @ head.T)[:, longest - 1 : -1].squeeze(-1)
    log_probs = torch.log_softmax(logits, dim=-1)
    chosen = torch.gather(log_probs, 2, torch.tensor(completions())[..., None]).squeeze(-1)
    return chosen, values


def hf_loss(models, task):
    """Returns TRL's loss and the gradient of the head; the model has its own after this."""
    import torch

    heads = {name: torch.tensor(np.asarray(one[1])) for name, one in models.items()}
    outputs = lambda name: hf_outputs(models[name][2], heads[name], task.temperature)  # noqa: E731
    with torch.no_grad():
        logprobs, values = outputs("old")
        ref_logprobs, _ = outputs("reference")
        # 4. compute rewards
        logr = ref_logprobs - logprobs
        kl = -logr if task.kl.form == "k1" else (logr.exp() - 1) - logr
        rewards = -task.kl.coefficient * kl
        rewards[:, -1] += torch.tensor(REWARDS)
        # 6. compute advantages and returns
        lastgaelam = 0
        advantages_reversed = []
        gen_length = values.shape[1]
        for t in reversed(range(gen_length)):
            nextvalues = values[:, t + 1] if t < gen_length - 1 else 0.0
            delta = rewards[:, t] + task.gae.gamma * nextvalues - values[:, t]
            lastgaelam = delta + task.gae.gamma * task.gae.lam * lastgaelam
            advantages_reversed.append(lastgaelam)
        advantages = torch.stack(advantages_reversed[::-1], axis=1)
        returns = advantages + values
        advantages = (advantages - advantages.mean()) * torch.rsqrt(advantages.var() + 1e-8)
    heads["policy"].requires_grad_()
    models["policy"][2].zero_grad()
    new_logprobs, vpred = outputs("policy")
    clip = task.value.clip
    vpredclipped = torch.clamp(vpred, values - clip, values + clip)
    vf_losses1 = torch.square(vpred - returns)
    vf_losses2 = torch.square(vpredclipped - returns)
    vf_loss = 0.5 * torch.max(vf_losses1, vf_losses2).mean()
    ratio = torch.exp(new_logprobs - logprobs)
    pg_losses = -advantages * ratio
    pg_losses2 = -advantages * torch.clamp(ratio, 1.0 - task.clip.low, 1.0 + task.clip.high)
    loss = torch.max(pg_losses, pg_losses2).mean() + task.value.coefficient * vf_loss
    loss.backward()
    return float(loss), heads["policy"].grad.numpy()


def our_loss(models, task):
    """Returns our loss and its gradient by all parameters."""
    made = task.build(model=MODEL)
    rows = [
        Rollout(
            prompt=PROMPTS[row // 2],
            tokens=tuple(tokens),
            log_probs=(0.0,) * SIZE,
            is_ended=True,
            rewards={},
            reward=REWARDS[row],
            group=row // 2,
            sample=row % 2,
            weight_version=0,
        )
        for row, tokens in enumerate(completions())
    ]
    batch = batch_of(rows, LENGTH, 257, ())
    reference = {"reference": models["reference"][0]}

    def state(name):
        return {**models[name][0], **reference, "value_head": {"weight": models[name][1]}}

    given = jax.tree.map(jnp.asarray, batch)
    recorded = jax.jit(lambda state: functional(made, state, given, method="record")[0])
    batch = made.finish_batch({**batch, **jax.device_get(recorded(state("old")))})

    def loss(state):
        return functional(made, state, jax.tree.map(jnp.asarray, batch))[1].total_loss()

    return jax.jit(jax.value_and_grad(loss))(state("policy"))


FREE = SamplerCorrection(max_ratio=None)
KL = KLPenalty(coefficient=0.2, form="k1")


@pytest.mark.parametrize(
    "task",
    [
        PPO.Config(sampler=FREE, kl=KL),
        PPO.Config(
            sampler=FREE,
            kl=KLPenalty(coefficient=0.2, form="k3"),
            clip=Clip(low=0.02, high=0.02),
            gae=GAE(gamma=0.9, lam=0.5),
            value=ValueLoss(coefficient=0.7, clip=0.05),
            temperature=0.7,
        ),
    ],
    ids=["trl's defaults", "others"],
)
def test_after_an_update(models, task, tmp_path):
    wanted, by_head = hf_loss(models, task)
    found, gradient = our_loss(models, task)
    assert float(found) == pytest.approx(wanted, rel=3e-5, abs=2e-6)
    head = gradient.pop("value_head")["weight"]
    np.testing.assert_allclose(head, by_head, atol=2e-5 * np.abs(by_head).max())
    assert np.abs(by_head).max() > 1e-4
    del gradient["reference"]
    assert_same_gradient(gradient, MODEL, models["policy"][2], tmp_path / "axcore")


def test_advantages_of_unequal_completions_are_those_of_verl():
    torch = pytest.importorskip("torch", reason="run make parity")
    draw = np.random.default_rng(0)
    rewards, values = draw.normal(size=(2, 5, 9))
    mask = (np.arange(9) < np.array([[9], [4], [1], [7], [5]])).astype(np.float64)
    mask[0, 3:5] = 0  # a turn of somebody else
    gae = GAE(gamma=0.9, lam=0.8)
    found, returns = generalized_advantages(rewards * mask, values, mask, gae)
    wanted, wanted_returns = verl_advantages(
        *(torch.tensor(one) for one in (rewards * mask, values, mask)), gae.gamma, gae.lam
    )
    counts = mask > 0
    np.testing.assert_allclose(returns[counts], wanted_returns.numpy()[counts])
    np.testing.assert_allclose(whitened(found, mask)[counts], wanted.numpy()[counts], rtol=1e-6)


def verl_advantages(token_level_rewards, values, response_mask, gamma, lam):
    """`compute_gae_advantage_return` of verl's `core_algos.py` (Apache License 2.0)."""
    import torch

    nextvalues = 0
    lastgaelam = 0
    advantages_reversed = []
    for t in reversed(range(token_level_rewards.shape[-1])):
        delta = token_level_rewards[:, t] + gamma * nextvalues - values[:, t]
        lastgaelam_ = delta + gamma * lam * lastgaelam
        # skip values and TD-error on observation tokens
        nextvalues = values[:, t] * response_mask[:, t] + (1 - response_mask[:, t]) * nextvalues
        lastgaelam = lastgaelam_ * response_mask[:, t] + (1 - response_mask[:, t]) * lastgaelam
        advantages_reversed.append(lastgaelam)
    advantages = torch.stack(advantages_reversed[::-1], dim=1)
    returns = advantages + values
    mean = (advantages * response_mask).sum() / response_mask.sum()
    squares = ((advantages - mean) ** 2 * response_mask).sum() / (response_mask.sum() - 1)
    return (advantages - mean) * torch.rsqrt(squares + 1e-8), returns
