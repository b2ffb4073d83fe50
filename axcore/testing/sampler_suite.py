"""`SamplerSuite`: what samples a token and what trains on it give it the same probability.

The ratio of an update compares two probabilities of a token. Where the sampler's differ from the
trainer's for another reason than training, every update is wrong by that ratio.
"""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import numpy as np
import pytest

from axcore.config import evolve
from axcore.plugins import Hardware, Kernel
from axcore.registration import Record
from axcore.testing.suite import Suite

if TYPE_CHECKING:
    from axcore.data import Policy
    from axcore.rollouts import Rollouts

_GROUPS, _GROUP_SIZE, _NEW_TOKENS, _LENGTH = 2, 4, 8, 16
_NO_CLIP = 1e-9
"""A clip that is smaller than the rounding of 1: it clips every ratio that is not exactly 1."""


@attrs.frozen
class SamplerGap:
    """How far apart the log-probabilities of sampler and trainer are, in nats.

    Attributes:
        mean: Of all sampled tokens.
        largest: Of one token.
        num_tokens: How many were compared.
    """

    mean: float
    largest: float
    num_tokens: int


def sampler_gap(
    policy: "Policy", batch: Mapping[str, np.ndarray], temperature: float
) -> SamplerGap:
    """Return the gap of a batch of rollouts by the present weights of a policy.

    Args:
        policy: What sampled them.
        batch: As `Rollouts.batch` makes it.
        temperature: What the sampler divided logits by.
    """
    import jax

    from axcore.layers import whole_rows
    from axcore.module import functional

    def log_probs(state: Any, tokens_BT: Any, targets_BT: Any, mask_BT: Any) -> Any:
        inputs = tokens_BT, targets_BT, whole_rows(tokens_BT, mask_BT), temperature
        (found_BT, _), _ = functional(
            policy.module, state, *inputs, method="log_probs_and_entropies"
        )
        return found_BT

    arrays = (batch[name] for name in ("tokens", "targets", "token_mask"))
    trainer_BT = np.asarray(jax.jit(log_probs)(policy.state, *arrays), np.float64)
    distance = np.abs(trainer_BT - batch["sampler_log_probs"])[batch["loss_weights"] > 0]
    return SamplerGap(float(distance.mean()), float(distance.max()), len(distance))


class SamplerSuite(Suite):
    """Proves it on this machine's devices: `class TestSampler(SamplerSuite): plugin = "axl-acme"`.

    The plugin's kernels serve where they accept the model's calls. Where none of them is for these
    devices, the tests are skipped.

    Attributes:
        mean_gaps: By the dtype that model and engine compute in, the largest mean distance of
            log-probabilities, in nats.
        largest_gaps: And that of one token.
    """

    kind: ClassVar[type[Record]] = Kernel
    mean_gaps: ClassVar[Mapping[str, float]] = {"float32": 1e-5, "bfloat16": 0.02}
    largest_gaps: ClassVar[Mapping[str, float]] = {"float32": 1e-4, "bfloat16": 0.2}

    def model(self) -> Any:
        """Return the config of the model that samples; sizes that the plugin's kernels accept."""
        from axcore.testing.tiny import small_experiment

        with tempfile.TemporaryDirectory() as folder:
            return small_experiment(Path(folder)).model

    @pytest.fixture(autouse=True)
    def _float32_is_float32(self) -> Iterator[None]:
        """Products of float32 are computed in it, which by default they are not everywhere."""
        import jax

        reasons = [one.unsupported_hardware_reason(Hardware.detect()) for one in self.records()]
        if None not in reasons:
            pytest.skip(f"{self.plugin} has no kernel for these devices: {reasons[0]}")
        settings: Any = jax.config
        before = settings.jax_default_matmul_precision
        # Of the process and not of a context: an engine runs in a thread of its own.
        settings.update("jax_default_matmul_precision", "highest")
        yield
        settings.update("jax_default_matmul_precision", before)

    # -- Claims ------------------------------------------------------------------------------

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_log_probabilities_of_sampler_and_trainer_are_within_bounds(self, dtype: str) -> None:
        """By the full forward pass of the trainer, and by calls of the engine with its cache."""
        data, policy = self._policy(dtype)
        batch = data.batch(data.begin_rollout(policy, range(_GROUPS))())
        gap = sampler_gap(policy, batch, data.config.sampling.temperature)
        assert gap.num_tokens >= _GROUPS * _GROUP_SIZE
        assert gap.mean <= self.mean_gaps[dtype], f"a mean of {gap.mean:.1e} nats in {dtype}"
        assert gap.largest <= self.largest_gaps[dtype], f"{gap.largest:.1e} nats in {dtype}"

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_the_first_ratio_is_exactly_1(self, dtype: str) -> None:
        """Of an update by the weights that sampled: no token is clipped, however small the clip."""
        import jax

        from axcore.module import functional
        from axcore.tasks import Clip, PolicyGradient, SamplerCorrection

        data, policy = self._policy(dtype)
        rollouts = data.begin_rollout(policy, range(_GROUPS))()
        batch = data.batch(rollouts)
        # Both signs: a clip decides above 1 for good completions, and below for bad ones.
        batch["rewards"] = np.resize(np.asarray([1, -1], np.float32), len(rollouts))
        free = SamplerCorrection(max_ratio=None)
        clip = Clip(low=_NO_CLIP, high=_NO_CLIP)
        task = PolicyGradient.Config(clip=clip, sampler=free).build(model=policy.module.config)
        _, out = jax.jit(lambda state, batch: functional(task, state, batch))(policy.state, batch)
        clipped = out.losses["clip_fraction"]
        assert float(clipped.sum) == 0
        assert float(clipped.weight) == sum(len(one.tokens) for one in rollouts)

    def test_bits_of_a_completion_do_not_depend_on_what_is_sampled_with_it(self) -> None:
        """An engine of fixed shapes gives them alone and among others, again and again."""
        data, policy = self._policy("float32")
        together = data.begin_rollout(policy, range(_GROUPS))()
        alone = data.begin_rollout(policy, [1])()
        among = [one for one in together if one.group == 1]
        assert [one.tokens for one in alone] == [one.tokens for one in among]
        assert [one.log_probs for one in alone] == [one.log_probs for one in among]

    def _policy(self, dtype: Any) -> "tuple[Rollouts, Policy]":
        """Return a loader that samples in a dtype, and the policy with random weights."""
        from axcore.data import Policy
        from axcore.inference import EngineConfig
        from axcore.module import DTypes
        from axcore.rewards import MatchingCharacters
        from axcore.rollouts import ReversedStrings, Rollouts

        module = evolve(self.model(), dtypes=DTypes(compute=dtype)).build()
        data: Rollouts = Rollouts.Config(
            prompts=ReversedStrings.Config(num_prompts=_GROUPS, min_length=3, max_length=6),
            rewards={"characters": MatchingCharacters.Config()},
            batch_size=_GROUPS * _GROUP_SIZE,
            group_size=_GROUP_SIZE,
            max_new_tokens=_NEW_TOKENS,
            seq_len=_LENGTH,
            validation_fraction=0.0,
            engine=EngineConfig(
                max_num_seqs=_GROUPS * _GROUP_SIZE,
                max_num_batched_tokens=16,
                num_decode_steps=4,
                fixed_shapes=True,
                sampler_kinds=("plain",),
                compute=dtype,
            ),
        ).build()
        return data, Policy(module, 0, module.init(0))
