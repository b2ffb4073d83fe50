"""Images in the place of text: scikit-learn's handwritten digits, and a small classifier of them.

A batch is `{"input": {"image": [B, 8, 8]}, "label": [B], "weight": [B]}`: nested, of several ranks.
"""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

from axcore.checkpoint import Checkpointer
from axcore.config import Fraction, config, update_config
from axcore.data import (
    DataLoader,
    DataShard,
    TrainBatches,
    ValidationBatches,
    batches,
    train_order,
)
from axcore.learner import Learner, WarmupCosine
from axcore.module import ArraySpec, BatchSpec, ModelFlops, Module, Param, count_params, entry
from axcore.parallel import ACTIVATION_RULES
from axcore.trainer import Trainer


class Images:
    """Rows of a data loader: images with their labels; a row of padding has no weight."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.labels)

    def batch(self, rows):
        rows_B = np.asarray(rows)
        is_real_B = rows_B >= 0
        image_BHW = np.where(is_real_B[:, None, None], self.images[rows_B], 0)
        return {
            "input": {"image": image_BHW.astype(np.float32) / 16},
            "label": np.where(is_real_B, self.labels[rows_B], 0).astype(np.int32),
            "weight": is_real_B.astype(np.float32),
        }


class Digits(DataLoader):
    """1,797 digits of 8 x 8 pixels; the last of them are held out."""

    @config
    class Config(DataLoader.Config):
        seed: int = 0
        validation_fraction: Fraction = 0.2

    def batch_spec(self):
        rows = self.config.batch_size
        image = ArraySpec(shape=(rows, 8, 8), axes=("batch", "height", None), dtype="float32")
        label = ArraySpec(shape=(rows,), axes=("batch",), dtype="int32", num_values=10)
        weight = ArraySpec(shape=(rows,), axes=("batch",), dtype="float32")
        return BatchSpec(
            arrays={"input": {"image": image}, "label": label, "weight": weight},
            unit="image",
            num_units=rows,
        )

    def train(self, *, process_index=0, process_count=1):
        shard = DataShard(self.config.batch_size, process_index, process_count)
        rows, _ = self.splits()
        order = train_order(len(rows), seed=self.config.seed, shuffle=True)
        return TrainBatches(batches(rows, order, shard), {"seed": self.config.seed})

    def validation(self, *, process_index=0, process_count=1):
        shard = DataShard(self.config.batch_size, process_index, process_count)
        _, rows = self.splits()
        return ValidationBatches.of(rows, shard)

    def summary(self):
        train, validation = self.splits()
        return f"digits: {len(train)} images; validation: {len(validation)} images"

    def splits(self):
        """Returns the images to train on and those held out."""
        digits = load_digits()
        first = round(len(digits.target) * (1 - self.config.validation_fraction))
        train, validation = slice(first), slice(first, None)
        return (
            Images(digits.images[train], digits.target[train]),
            Images(digits.images[validation], digits.target[validation]),
        )


class Classifier(Module):
    """A hidden layer over each line of pixels, and one over all lines."""

    @config
    class Config(Module.Config):
        num_classes: int = 10
        dim: int = 16

    def setup(self, cfg):
        self.lines = Param((8, cfg.dim), axes=(None, "embed"), inputs=(None,))
        self.classes = Param((8, cfg.dim, cfg.num_classes), axes=(None, "embed", None))

    def check_batch(self, batch):
        num_labels = batch.arrays["label"].num_values
        if num_labels != self.config.num_classes:
            raise ValueError(f"{num_labels} labels for {self.config.num_classes} classes")

    def flops_per_unit(self, batch):
        return ModelFlops(6.0 * count_params(self.param_specs()), "6 N")

    @entry
    def logits(self, image_BHW):
        hidden_BHD = jax.nn.relu(jnp.einsum("bhw,wd->bhd", image_BHW, self.lines))
        return jnp.einsum("bhd,hdc->bc", hidden_BHD, self.classes)

    def forward(self, batch):
        logits_BC = self.logits(batch["input"]["image"])
        right_B = jnp.take_along_axis(logits_BC, batch["label"][:, None], axis=1)[:, 0]
        nll_B = jax.nn.logsumexp(logits_BC, axis=1) - right_B
        weight_B = batch["weight"]
        self.add_loss("cross_entropy", jnp.sum(nll_B * weight_B), jnp.sum(weight_B))


def digits_experiment(**settings):
    """Returns the config of a run over the digits: three epochs, evaluated and saved on the way."""
    values = {
        "model": Classifier.Config(),
        "data": Digits.Config(batch_size=64),
        "learner": Learner.Config(schedule=WarmupCosine.Config(peak=0.02, warmup_steps=5)),
        "sharding.activation_rules": {**ACTIVATION_RULES, "height": ("seq",)},
        "max_steps": 66,
        "logging.every_steps": 11,
        "eval_every_steps": 22,
        "checkpoint": Checkpointer.Config(every_steps=22, keep=None),
    }
    flat = {name: value for name, value in (values | settings).items() if "." not in name}
    return update_config(
        Trainer.Config(**flat), {k: v for k, v in (values | settings).items() if "." in k}
    )
