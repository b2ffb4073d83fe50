"""`Rollouts`: a data loader whose batches the policy in training samples."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from axcore.config import (
    REQUIRED,
    Fraction,
    NonNegativeInt,
    PositiveInt,
    config,
    evolve,
)
from axcore.data import ByteTokenizer, DataLoader, FileSource, Policy, Source, Tokenizer
from axcore.data.document import Document, is_validation
from axcore.data.packing.batches import Order, train_order
from axcore.data.packing.packing import Batch
from axcore.data.prompts import PROMPT, encode_prompt_record
from axcore.environments import EnvironmentPool
from axcore.environments.named import EnvironmentConfig
from axcore.errors import ConfigError, DataError
from axcore.inference import EngineConfig, Sampling
from axcore.module import ArraySpec, BatchSpec, functional
from axcore.rewards import COMPLETION_TOKENS, FailureBudget, RewardPool, ScoreRequest
from axcore.rewards.named import RewardConfigs
from axcore.rollouts.batches import RolloutBatches
from axcore.rollouts.episodes import TURNS, Episode, Episodes, Openings, Prompt
from axcore.rollouts.prompts import ReversedStrings
from axcore.rollouts.rollout import ENVIRONMENT, Rollout, batch_of
from axcore.rollouts.sampler import PolicySampler
from axcore.tasks.policy_gradient import (
    FAILED_PREFIX,
    REWARD_PREFIX,
    ROLLOUT_ARRAYS,
    PolicyGradient,
    TokenArray,
)

MESSAGES = "messages"
"""The field of a document that is a conversation, in the place of its text."""

_TOKEN_ARRAYS = {
    "tokens": "int32",
    "targets": "int32",
    "token_mask": "bool",
    "loss_weights": "float32",
    "sampler_log_probs": "float32",
}


class Rollouts(DataLoader):
    """Completions of prompts, sampled by the policy and rewarded, group after group.

    The batch of a step has `batch_size / group_size` prompts in a fixed order, each with
    `group_size` completions. It depends on the step, the seed and the weights of that step alone.

    Validation batches are completions of prompts that are never trained on.

    Attributes:
        evaluated: Those of the first batch of the newest evaluation.
    """

    @config
    class Config(DataLoader.Config):
        """What to ask, and what answers are worth.

        Attributes:
            prompts: Any source of text; the text of a document is a prompt, or its field `messages`
                is a conversation.
            rewards: What a completion is worth, by name; their weighted sum is what counts.
            environment: What replies to the policy between its turns; None for completions of one
                turn.
            reward_failures: How many completions may stay without a reward, since one or the
                environment failed.
            tokenizer: How text becomes tokens.
            group_size: Completions of each prompt.
            max_new_tokens: Tokens of a completion at most, replies of the environment included.
            seq_len: Tokens of prompt and completion at most; longer prompts are left out, and
                counted.
            sampling: How tokens are sampled.
            engine: How much is sampled at once; its `max_length` is filled.
            batches_per_rollout: Batches that are sampled by the same weights.
            epochs_per_rollout: How often each of them is trained on.
            max_lag: Rollouts that are sampled ahead, while steps run: by weights that are so many
                rollouts older. 0 samples by the weights of the step itself.
            max_sampling_rounds: Groups whose rewards are all equal teach nothing. Up to so many
                times further prompts are asked in their place; 1 keeps them.
            seed: Decides the order of prompts and the samples.
            shuffle: Whether prompts are asked in another order each epoch.
            validation_fraction: Share of the prompts that is never trained on, in [0, 1).
            validation_prompts: How many of them an evaluation asks at most; None asks all.
            validation_temperature: How they are sampled; 0 takes the likeliest token.
        """

        prompts: Source.Config = ReversedStrings.Config()
        rewards: RewardConfigs = REQUIRED
        environment: EnvironmentConfig = None
        reward_failures: FailureBudget = FailureBudget()
        tokenizer: Tokenizer.Config = ByteTokenizer.Config()
        group_size: PositiveInt = 8
        max_new_tokens: PositiveInt = REQUIRED
        seq_len: PositiveInt = REQUIRED
        sampling: Sampling = Sampling(temperature=1.0)
        engine: EngineConfig = EngineConfig(
            max_num_seqs=64, sampler_kinds=("greedy", "plain", "full")
        )
        batches_per_rollout: PositiveInt = 1
        epochs_per_rollout: PositiveInt = 1
        max_lag: NonNegativeInt = 0
        max_sampling_rounds: PositiveInt = 1
        seed: int = 0
        shuffle: bool = True
        validation_fraction: Fraction = 0.05
        validation_prompts: PositiveInt | None = 64
        validation_temperature: float = 0.0

        def for_shapes(self) -> Self:
            """Return a config that reads no file of the user's."""
            return evolve(self, prompts=ReversedStrings.Config(), tokenizer=ByteTokenizer.Config())

    config: Config
    tokenizer: Tokenizer
    evaluated: list[Rollout]

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        _check(cfg)
        self.source = cfg.prompts.build()
        self.tokenizer = cfg.tokenizer.build()
        self._rewards = RewardPool(cfg.rewards, cfg.reward_failures)
        self._sampler = PolicySampler(self.tokenizer, self.engine_config, cfg.seed)
        self._environment = (
            None
            if cfg.environment is None
            else EnvironmentPool(cfg.environment, cfg.reward_failures)
        )
        self._episodes = Episodes(
            self._sampler,
            self.tokenizer,
            max_tokens=cfg.max_new_tokens,
            environment=self._environment,
        )
        self._evaluated: Policy | None = None
        self.evaluated = []
        self._task: PolicyGradient | None = None
        self._record: Any = None

    @property
    def engine_config(self) -> EngineConfig:
        """The config of the engine that samples, for rows of this length."""
        cfg = self.config
        # Completions of a rollout are asked for together.
        max_queue = max(cfg.batches_per_rollout * cfg.batch_size, 1024)
        return evolve(cfg.engine, max_length=cfg.seq_len + 1, max_queue=max_queue)

    def batch_spec(self) -> BatchSpec:
        """Return the arrays of a batch."""
        cfg = self.config
        rows, size = cfg.batch_size, self.tokenizer.vocab_size
        values = {"tokens": size, "targets": size}
        tokens = {
            name: ArraySpec(
                shape=(rows, cfg.seq_len),
                axes=("batch", "time"),
                dtype=dtype,
                num_values=values.get(name),
            )
            for name, dtype in _TOKEN_ARRAYS.items()
        }
        names = [name for name in ROLLOUT_ARRAYS if name not in tokens]
        of_rows = {
            name: ArraySpec(
                shape=(rows,), axes=("batch",), dtype="int32" if name == "group" else "float32"
            )
            for name in (*names, *_arrays_of(cfg))
        }
        for name, one in {**self._recorded, **self._finished}.items():
            tokens[name] = ArraySpec(
                shape=(rows, cfg.seq_len, *one.shape),
                axes=("batch", "time", *[None] * len(one.shape)),
                dtype=one.dtype,
            )
        return BatchSpec(
            arrays={**tokens, **of_rows},
            unit="token",
            num_units=rows * cfg.seq_len,
            sized_by={"batch": "batch_size", "time": "seq_len"},
        )

    def train(self, *, process_index: int = 0, process_count: int = 1) -> RolloutBatches:
        """Return an iterator without end.

        Raises:
            DataError: The prompts cannot be read, or none is short enough.
            ConfigError: There are several processes, or this machine cannot compute a reward.
        """
        if process_count > 1:
            raise ConfigError(
                f"rollouts are sampled in one process; this run has {process_count}",
                where="data",
                hint="train with one process; it may have any number of devices",
            )
        self._rewards.check()
        if self._environment is not None:
            self._environment.environment.check()
        return RolloutBatches(self, self._identity)

    def validation(self, *, process_index: int = 0, process_count: int = 1) -> Iterator[Batch]:
        """Yield completions of the prompts that are held out, by the weights of `on_policy`."""
        cfg, prompts = self.config, self._prompts[1][: self.config.validation_prompts]
        sampling = evolve(cfg.sampling, temperature=cfg.validation_temperature)
        size = cfg.batch_size
        for begin in range(0, len(prompts), size):
            asked = {begin + i: one for i, one in enumerate(prompts[begin : begin + size])}
            found = self._begin(
                self._evaluated, asked, num_samples=1, sampling=sampling, stream="validation"
            )()
            if begin == 0:
                self.evaluated = found
            yield self.batch([*found, *[None] * (size - len(found))])

    def on_task(self, task: Any) -> None:
        """Hear which task compares with what it recorded when completions were sampled."""
        self._task = task if isinstance(task, PolicyGradient) else None

    def check_task(self, task: Any) -> None:
        """Check that there are the rewards that a task reads, and that it has our temperature.

        Raises:
            ConfigError: There are none, or it has another: ratios would be of two distributions.
        """
        if not self.config.rewards and getattr(task, "reads_rewards", True):
            raise ConfigError(
                "there is no reward",
                where="data.rewards",
                hint="--set data.rewards=exact_match",
            )
        sampled = self.config.sampling.temperature
        trained = getattr(task.config, "temperature", sampled)
        if sampled == trained:
            return
        hint = f"--set task.temperature={sampled}" if sampled else ""
        raise ConfigError(
            f"data.sampling.temperature is {sampled}, and task.temperature {trained}: the task "
            "would compare probabilities of two distributions",
            where="task.temperature",
            hint=hint or f"--set data.sampling.temperature={trained}",
        )

    def on_run(self, directory: Path) -> None:
        """Write failures of rewards and the environment to the events of the run."""
        self._rewards.log_to(directory)
        if self._environment is not None:
            self._environment.log_to(directory)

    def on_run_end(self) -> None:
        """End the processes of rewards and the environment."""
        self._episodes.stop()
        self._rewards.close()
        if self._environment is not None:
            self._environment.close()

    def on_policy(self, policy: Policy) -> None:
        """Hear which weights the completions of `validation` are sampled with."""
        self._evaluated = policy

    def summary(self) -> str:
        """Read the prompts, and say how many there are."""
        train, validation = self._prompts
        return (
            f"{self.source.describe()}: {len(train):,} prompts; validation: {len(validation):,}; "
            f"{self.config.group_size} completions each"
        )

    def begin_rollout(
        self, policy: Policy | None, numbers: Sequence[int]
    ) -> Callable[[], list[Rollout]]:
        """Begin to sample the groups of some prompts of the endless order.

        Args:
            policy: Whose present weights sample.
            numbers: Which prompts.

        Returns:
            A function that waits for the rollouts, and returns them in the order of the prompts.
        """
        prompts = self._prompts[0]
        asked = {number: prompts[self._order[number]] for number in numbers}
        cfg = self.config
        return self._begin(
            policy, asked, num_samples=cfg.group_size, sampling=cfg.sampling, stream="train"
        )

    def batch(self, rollouts: Sequence[Rollout | None]) -> Batch:
        """Return rollouts as the arrays of a batch; None is a row of padding."""
        batch = self._arrays(rollouts, self._recorded)
        return batch if self._task is None else self._task.finish_batch(batch)

    def _arrays(
        self, rollouts: Sequence[Rollout | None], recorded: Mapping[str, TokenArray] = {}
    ) -> Batch:
        cfg = self.config
        return batch_of(
            rollouts,
            cfg.seq_len,
            self.tokenizer.pad_id,
            tuple(cfg.rewards),
            recorded=recorded,
            has_environment=cfg.environment is not None,
        )

    def _begin(
        self,
        policy: Policy | None,
        asked: Mapping[int, Prompt],
        *,
        num_samples: int,
        sampling: Sampling,
        stream: str,
    ) -> Callable[[], list[Rollout]]:
        if policy is None or policy.state is None:
            raise DataError(
                "rollouts are asked for before there are weights to sample them with",
                where="data",
                hint="call on_policy(Policy(module, step, state)) first; a Trainer does",
            )
        state, version = policy.state, policy.step
        # Also where nothing is recorded: it is the state of the model then.
        whole = self.record_state(state, policy.kept)
        if self.config.max_lag:
            # Steps take the memory of the policy's own arrays while these are still in use.
            whole = jax.tree.map(jnp.copy, whole)
            state = {name: whole[name] for name in state}
        sampled = self._episodes.begin(
            policy,
            state,
            asked,
            num_samples=num_samples,
            sampling=sampling,
            stream=stream,
            in_background=self.config.max_lag > 0,
        )

        def finished() -> list[Rollout]:
            episodes = sampled()
            # All together: rewards that run in processes are computed side by side.
            scored = [one for one in episodes if not one.has_failed]
            scores = iter(self._rewards.score([self._score_request(one) for one in scored]))
            unscored = dict.fromkeys(self.config.rewards, math.nan)
            rollouts = [
                self._rollout(one, unscored if one.has_failed else next(scores), version)
                for one in episodes
            ]
            return self._with_recorded(policy, whole, rollouts)

        # Once: whoever saves the position asks, and whoever trains.
        return lru_cache(finished)

    @property
    def has_records(self) -> bool:
        """Whether the task records something of each rollout: an update needs it."""
        return bool(self._recorded)

    @property
    def batches_of_rollout(self) -> int:
        """How many batches are trained on before the next rollout."""
        return self.config.batches_per_rollout * self.config.epochs_per_rollout

    @property
    def _recorded(self) -> Mapping[str, TokenArray]:
        task = self._task
        # By other weights than sampled them, where there are several batches, or a lag.
        is_reused = self.batches_of_rollout > 1 or self.config.max_lag > 0
        if task is None or not (is_reused or task.always_records):
            return {}
        return task.recorded_arrays()

    @property
    def _finished(self) -> Mapping[str, TokenArray]:
        return {} if self._task is None else self._task.finished_arrays()

    def record_state(self, state: Any, kept: Any) -> Any:
        """Return what `jitted_record` reads of a model's state, and of what the task keeps."""
        if self._task is None or not self._recorded:
            return state
        return {**state, **{name: kept[name] for name in self._task.recorded_with()}}

    def jitted_record(self, policy: Policy) -> Callable[..., dict[str, Array]]:
        """Return the program of what the task records.

        Its arguments are what `record_state` returns, and a dict of `tokens`, `targets` and
        `token_mask`.
        """
        task = self._task

        def record(state: Any, batch: Any) -> Any:
            return functional(task, state, batch, method="record")[0]  # type: ignore[arg-type]

        return policy.jit(record)

    def _with_recorded(self, policy: Policy, state: Any, rollouts: list[Rollout]) -> list[Rollout]:
        """Return rollouts with what the task records by the weights that sampled them."""
        task, size, found = self._task, self.config.batch_size, []
        if task is None or not self._recorded:
            return rollouts
        if self._record is None:
            self._record = self.jitted_record(policy)
        for begin in range(0, len(rollouts), size):
            rows: list[Rollout | None] = [*rollouts[begin : begin + size]]
            padded = [*rows, *[None] * (size - len(rows))]  # one shape, one program
            batch = self._arrays(padded)
            read = {name: batch[name] for name in ("tokens", "targets", "token_mask")}
            arrays = {name: np.asarray(one) for name, one in self._record(state, read).items()}
            task.check_recorded(arrays)
            for row, one in enumerate(rollouts[begin : begin + size]):
                length = len(one.prompt) + len(one.tokens) - 1
                recorded = {name: arrays[name][row, :length] for name in self._recorded}
                found.append(attrs.evolve(one, recorded=recorded))
        return found

    def _rollout(self, episode: Episode, rewards: Mapping[str, float], version: int) -> Rollout:
        return Rollout(
            prompt=episode.prompt.tokens,
            tokens=tuple(episode.tokens),
            log_probs=tuple(episode.log_probs),
            is_ended=episode.turns[-1].is_ended,
            rewards=rewards,
            reward=math.nan if episode.has_failed else self._weighted_sum(rewards),
            group=episode.number,
            sample=episode.sample,
            weight_version=version,
            replies=tuple(episode.replies),
            environment_failed=episode.has_failed,
        )

    def _score_request(self, episode: Episode) -> ScoreRequest:
        prompt, fields = episode.prompt, episode.prompt.document.fields
        own: dict[str, Any] = {COMPLETION_TOKENS: episode.num_sampled}
        if self._environment is not None:
            own |= {TURNS: [turn.text for turn in episode.turns]}
        if taken := own.keys() & fields.keys():
            raise DataError(
                f"a prompt has a field `{min(taken)}`, which is what was sampled",
                where=f"data.prompts: {prompt.document.name}",
                hint="give the field another name",
            )
        values = {**fields, **episode.fields, **own}
        return ScoreRequest(prompt.text, episode.turns[-1].text, values)

    def _weighted_sum(self, rewards: Mapping[str, float]) -> float:
        # Without what only measures: 0 times a nan is one.
        weights = {name: one.weight for name, one in self.config.rewards.items() if one.weight}
        return float(sum(rewards[name] * weight for name, weight in weights.items()))

    @cached_property
    def _prompts(self) -> tuple[list[Prompt], list[Prompt]]:
        """The prompts to train on, and those that are held out."""
        cfg = self.config
        splits: tuple[list[Prompt], list[Prompt]] = [], []
        longest, num_left_out = cfg.seq_len + 1 - cfg.max_new_tokens, 0
        for document in self._documents():
            prompt = self._prompt(document)
            if len(prompt.tokens) > longest:
                num_left_out += 1
                continue
            is_held = is_validation(document.name, cfg.validation_fraction)
            splits[is_held].append(prompt)
        if num_left_out:
            print(
                f"data: {num_left_out:,} prompts of {self.source.describe()} have more than "
                f"{longest} tokens, with data.max_new_tokens={cfg.max_new_tokens} more than "
                f"data.seq_len={cfg.seq_len} holds, and are left out",
                file=sys.stderr,
            )
        if not splits[0]:
            raise DataError(
                f"{self.source.describe()} has no prompt to train on: {num_left_out} are too long, "
                f"and {len(splits[1])} held out",
                where="data.prompts",
                hint="raise data.seq_len, or lower data.validation_fraction",
            )
        return splits

    def _documents(self) -> Iterator[Document]:
        source: Source = self.source
        if isinstance(source, FileSource):
            return source.transformed(self.tokenizer)
        return source.documents()

    def _prompt(self, document: Document) -> Prompt:
        chat = None if self._openings is None else self._openings.prompt(document)
        if chat is not None:
            return chat
        if document.tokens is not None:
            return Prompt(document, document.text, tuple(document.tokens.tolist()))
        record = document.fields if MESSAGES in document.fields else {PROMPT: document.text}
        try:
            if record.get(PROMPT) == "":
                raise DataError("the document has neither text nor `messages`.")
            found = encode_prompt_record(record, self.tokenizer)
        except DataError as error:
            raise DataError(error.what, where=document.name, hint=error.hint) from error
        return Prompt(document, found.text, found.tokens)

    @cached_property
    def _openings(self) -> Openings | None:
        pool = self._environment
        return None if pool is None else Openings(self.tokenizer, pool.environment)

    @cached_property
    def _order(self) -> Order:
        cfg = self.config
        return train_order(len(self._prompts[0]), seed=cfg.seed, shuffle=cfg.shuffle)

    @cached_property
    def _identity(self) -> dict[str, Any]:
        """Everything that a batch depends on, besides its step and the weights."""
        cfg, digest = self.config, blake2b(digest_size=16)
        for one in self._prompts[0]:
            fields = sorted(one.document.fields.items())
            digest.update(repr((one.tokens, fields)).encode("utf-8", "surrogateescape"))
        names = (
            "batch_size",
            "group_size",
            "max_new_tokens",
            "seq_len",
            "batches_per_rollout",
            "epochs_per_rollout",
            "max_lag",
            "max_sampling_rounds",
            "seed",
            "shuffle",
        )
        return {
            **self._environment_identity,
            "prompts": digest.hexdigest(),
            "sampling": repr(cfg.sampling),
            **{name: getattr(cfg, name) for name in names},
        }

    @property
    def _environment_identity(self) -> dict[str, Any]:
        """What of the environment a batch depends on; nothing where there is none."""
        if self._environment is None:
            return {}
        # Not the config, whose functions are other objects in each process.
        one = self._environment.environment
        named = type(one).__qualname__, one.config.max_turns, one.config.max_turn_tokens
        return {"environment": repr((*named, one.roles, one.tools))}


def _arrays_of(cfg: Rollouts.Config) -> list[str]:
    found = [prefix + name for name in cfg.rewards for prefix in (REWARD_PREFIX, FAILED_PREFIX)]
    return [*found, *([] if cfg.environment is None else [FAILED_PREFIX + ENVIRONMENT])]


def _check(cfg: Rollouts.Config) -> None:
    if cfg.batch_size % cfg.group_size:
        raise ConfigError(
            f"batch_size is {cfg.batch_size}, which groups of {cfg.group_size} do not divide",
            where="data.batch_size",
            hint=f"--set data.batch_size={-(-cfg.batch_size // cfg.group_size) * cfg.group_size}",
        )
    if cfg.max_lag and cfg.max_sampling_rounds > 1:
        raise ConfigError(
            f"max_lag is {cfg.max_lag} and max_sampling_rounds {cfg.max_sampling_rounds}: further "
            "prompts are chosen by rewards, which are not there yet",
            where="data.max_sampling_rounds",
            hint="--set data.max_lag=0",
        )
    if cfg.environment is not None and ENVIRONMENT in cfg.rewards:
        raise ConfigError(
            f"a reward is named {ENVIRONMENT!r}, as failures of the environment are",
            where=f'data.rewards["{ENVIRONMENT}"]',
            hint='--set \'data.rewards={"of_environment": "field(name=...)"}\'',
        )
    if cfg.max_new_tokens > cfg.seq_len:
        raise ConfigError(
            f"max_new_tokens is {cfg.max_new_tokens}, and a row has {cfg.seq_len} tokens",
            where="data.max_new_tokens",
            hint=f"--set data.seq_len={2 * cfg.max_new_tokens}",
        )
