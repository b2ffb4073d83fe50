"""A toy model with everything that a trainer carries, a small transformer, and text to train on.

The toy compiles in a second; full trainers are shared between tests, because compiling a step
costs more than running it.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from texts import write_text

from axcore.checkpoint import Checkpointer
from axcore.config import Resumable, config, evolve, update_config
from axcore.data import Data, TextFiles
from axcore.learner import AdamW, Learner, WarmupCosine
from axcore.models import transformer
from axcore.module import Module, Param
from axcore.testing import trainer_on
from axcore.trainer import LoggingConfig, Trainer

VOCAB = 264


class Toy(Module):
    """Predicts a token from the one before, with a bias, dropout, statistics and a second loss."""

    @config
    class Config(Module.Config):
        vocab_size: int = VOCAB
        dim: int = 8
        dropout: float = 0.1
        poison: Literal["none", "marked", "often", "late"] = "none"
        note: Resumable[str] = ""

    def setup(self, cfg):
        self.table = Param((cfg.vocab_size, cfg.dim), axes=("vocab", "embed"))
        self.bias = Param((cfg.vocab_size,), axes=("vocab",), init=0.0)
        self.mean = Param((cfg.dim,), axes=("embed",), init=0.0, is_buffer=True, dtype="float32")
        self.calls = Param((), axes=(), init=0.0, is_buffer=True, dtype="int32")

    def forward(self, batch):
        x_BTD = self.table[batch["tokens"]]
        self.update(
            "mean", 0.9 * self.mean + 0.1 * jnp.mean(x_BTD.astype(jnp.float32), axis=(0, 1))
        )
        self.update("calls", self.calls + 1)
        if self.training and self.config.dropout:
            kept = jax.random.bernoulli(self.rng("dropout"), 1 - self.config.dropout, x_BTD.shape)
            x_BTD = jnp.where(kept, x_BTD, 0)
        logits_BTV = jnp.einsum("btd,vd->btv", x_BTD, self.table) + self.bias[None, None]
        right_BT = jnp.take_along_axis(logits_BTV, batch["targets"][..., None], axis=2)[..., 0]
        nll_BT = jax.nn.logsumexp(logits_BTV, axis=2) - right_BT
        weights_BT = batch["loss_weights"]
        self.add_loss("cross_entropy", jnp.sum(nll_BT * weights_BT), jnp.sum(weights_BT))
        longest = jnp.sum(jnp.max(batch["positions"], axis=1)).astype(jnp.float32)
        self.add_loss("size", jnp.sum(jnp.square(x_BTD)), longest, scale=0.01)
        self.add_summary("bias_norm", jnp.linalg.norm(self.bias))
        if self.training and self.config.poison != "none":
            self.add_loss("poison", self._poison(batch["tokens"][0, 0]))

    def _poison(self, first_token):
        """Zero, or infinite; "marked" also has a loss of zero whose gradient is nan."""
        if self.config.poison == "often":
            is_bad = jax.random.bernoulli(self.rng("poison"), 0.3)
        elif self.config.poison == "late":
            is_bad = self.calls >= 5
        else:
            is_bad = first_token == 1
        is_rooted = first_token == (2 if self.config.poison == "marked" else -1)
        root = jnp.sqrt(jnp.where(is_rooted, jnp.sum(self.bias) * 0.0, 1.0))
        return root - jnp.where(is_rooted, 0.0, 1.0) + jnp.where(is_bad, jnp.inf, 0.0)


@pytest.fixture(scope="session")
def toy():
    return Toy


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts") / "text"
    write_text(folder)
    return folder


@pytest.fixture(scope="session")
def toy_config(text_folder):
    """Twelve steps of the toy: logged each, evaluated and saved every four."""
    return Trainer.Config(
        model=Toy.Config(),
        data=Data.Config(
            source=TextFiles.Config(folder=str(text_folder)),
            seq_len=16,
            batch_size=8,
            validation_fraction=0.1,
            validation_batches=2,
        ),
        learner=Learner.Config(schedule=WarmupCosine.Config(peak=0.05, warmup_steps=4)),
        max_steps=12,
        logging=LoggingConfig(every_steps=1),
        eval_every_steps=4,
        checkpoint=Checkpointer.Config(every_steps=4, keep=None),
    )


@pytest.fixture(scope="session")
def small_config(toy_config):
    """Four steps of a transformer with two scanned layers."""
    return evolve(
        toy_config,
        model=transformer(
            vocab_size=VOCAB, dim=32, num_layers=2, num_heads=4, num_kv_heads=2, hidden_dim=64
        ),
        data=evolve(toy_config.data, seq_len=64),
        learner=Learner.Config(
            optimizer=AdamW.Config(epsilon=1e-3), schedule=WarmupCosine.Config(warmup_steps=1)
        ),
        max_steps=4,
    )


@pytest.fixture(scope="session")
def one_device():
    """Makes a trainer of a config on the first device."""
    return lambda cfg: trainer_on(cfg, 1)


@pytest.fixture(scope="session")
def toy_trainer(toy_config, one_device):
    return one_device(toy_config)


@pytest.fixture(scope="session")
def rare_trainer(toy_config, one_device):
    """The toy, logged every five steps and evaluated every two."""
    return one_device(update_config(toy_config, {"logging.every_steps": 5, "eval_every_steps": 2}))


@pytest.fixture(scope="session")
def whole_run(toy_trainer, tmp_path_factory):
    """A directory and the result of the toy's run that was never stopped."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    return directory, toy_trainer.run(directory)


@pytest.fixture(scope="session")
def small_trainer(small_config, one_device):
    return one_device(small_config)


@pytest.fixture(scope="session")
def same_bits():
    """Says whether two states are equal in every bit."""

    def same(a, b):
        pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
        return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)

    return same
