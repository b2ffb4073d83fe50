"""A task's second model: read from elsewhere, frozen, split, saved; and seen by nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state

from axcore.config import REQUIRED, PositiveFloat, config, evolve, update_config
from axcore.errors import CheckpointError, ModuleError
from axcore.interop import HuggingFace, to_hugging_face
from axcore.layers import packed_rows
from axcore.module import functional
from axcore.runs import load_run
from axcore.tasks import DPO, FrozenModel, Task
from axcore.testing import small_experiment, trainer_on


class Distillation(Task):
    """Cross-entropy with a teacher's probabilities."""

    @config
    class Config(Task.Config):
        teacher: FrozenModel.Config = REQUIRED
        temperature: PositiveFloat = 1.0

    def setup(self, cfg):
        super().setup(cfg)
        self.teacher = cfg.teacher.build()

    def forward(self, batch):
        info, heat = packed_rows(batch), self.config.temperature
        taught = jax.nn.softmax(self.teacher("logits", batch["tokens"], info) / heat)
        said = jax.nn.log_softmax(self.model.logits(batch["tokens"], info) / heat)
        weights = batch["loss_weights"]
        self.add_loss("distillation", -jnp.sum(jnp.sum(taught * said, -1) * weights), weights.sum())


@pytest.fixture
def teacher(tmp_path):
    """A pretrained checkpoint that is wider than the student, its config and its state."""
    cfg = small_experiment(tmp_path / "texts")
    model = update_config(cfg.model, {"dim": 48, "**.hidden_dim": 40, "**.num_layers": 1})
    state = jax.tree.map(jnp.asarray, numpy_state(model.build().param_specs()))
    to_hugging_face(tmp_path / "teacher", model, state)
    return model, state


@pytest.fixture
def cfg(tmp_path, teacher):
    source = HuggingFace.Config(path=str(tmp_path / "teacher"))
    task = Distillation.Config(teacher=FrozenModel.Config(model=teacher[0], init_from=source))
    small = update_config(small_experiment(tmp_path / "texts"), {"**.num_layers": 1})
    return update_config(small, {"mesh": {"fsdp": 2}, "task": task, "max_steps": 2})


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.slow
def test_a_run_begins_with_the_teacher_and_keeps_it_to_the_end(cfg, teacher, tmp_path):
    trainer = trainer_on(cfg, 2)
    first = trainer.first_state()
    assert_same(first.model["teacher"], teacher[1])
    assert jax.tree.map(lambda leaf: leaf.sharding, first) == trainer.compiler.shardings()
    table = first.model["teacher"]["decoder"]["embedding"]["weight"]
    assert table.addressable_shards[0].data.size == table.size // 2
    embedding = np.asarray(first.model["decoder"]["embedding"]["weight"])
    result = trainer.run(tmp_path / "run", quiet=True)
    assert_same(result.state.model["teacher"], teacher[1])
    assert np.any(np.asarray(result.state.model["decoder"]["embedding"]["weight"]) != embedding)
    moments = jax.tree.leaves(result.state.opt_state)
    assert {leaf.shape for leaf in moments}.isdisjoint({table.shape}), "it has no optimizer state"

    (tmp_path / "teacher").rename(tmp_path / "gone")  # a run that resumes reads it no more
    longer = trainer_on(evolve(cfg, max_steps=3), 2).run(tmp_path / "run", quiet=True)
    assert_same(longer.state.model["teacher"], teacher[1])
    with pytest.raises(CheckpointError, match="teacher"):
        trainer_on(cfg, 2).first_state()
    assert "teacher" not in load_run(tmp_path / "run").state


def test_what_is_learned_is_what_the_teacher_says(cfg, teacher):
    """A student that is the teacher has the loss of the teacher's own entropy, and no gradient."""
    task = cfg.task.build(model=teacher[0])
    state = {**teacher[1], "teacher": teacher[1]}
    tokens = jnp.arange(16, dtype=jnp.int32).reshape(2, 8)
    batch = {"tokens": tokens, "positions": tokens % 8, "loss_weights": jnp.ones((2, 8))}

    def loss(head):
        return functional(task, {**state, "head": head}, batch, training=True)[1].total_loss()

    total, gradient = jax.jit(jax.value_and_grad(loss))(state["head"])
    logits, _ = functional(teacher[0].build(), teacher[1], tokens, method="logits")
    entropy = -jnp.sum(jax.nn.softmax(logits) * jax.nn.log_softmax(logits), -1).mean()
    np.testing.assert_allclose(total, entropy, rtol=1e-5)
    assert float(jnp.abs(gradient["weight"]).max()) < 1e-6


class Named(Distillation):
    """Has its teacher where the model has its decoder."""

    def setup(self, cfg):
        Task.setup(self, cfg)
        self.decoder = cfg.teacher.build()


def test_a_name_that_the_model_has_is_refused(cfg):
    other = Named.Config(teacher=cfg.task.teacher)
    with pytest.raises(ModuleError, match=r"Named\.decoder is a FrozenModel"):
        trainer_on(evolve(cfg, task=other), 2)


class TaughtDPO(DPO):
    """Has a reference and a teacher."""

    @config
    class Config(DPO.Config):
        teacher: FrozenModel.Config = REQUIRED

    def setup(self, cfg):
        super().setup(cfg)
        self.teacher = cfg.teacher.build()


def test_a_reference_and_a_frozen_model_go_together(cfg):
    task = TaughtDPO.Config(teacher=cfg.task.teacher).build(model=cfg.model)
    specs = task.param_specs()
    kept = task.kept_specs(specs)
    assert kept.keys() == {"reference", "teacher"}
    made = jax.eval_shape(lambda state: task.kept_state(state, specs), numpy_state(specs))
    assert jax.tree.structure(made) == jax.tree.structure(numpy_state(kept))
