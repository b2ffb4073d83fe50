"""`init_from`: before it trains, a run is the pretrained checkpoint that it begins with."""

import jax
import numpy as np
import pytest

from axcore.config import update_config
from axcore.errors import ConfigError
from axcore.interop import HuggingFace, to_hugging_face
from axcore.modifiers import LoRA, with_changes
from axcore.module import DTypes
from axcore.plugins import Hardware
from axcore.testing import small_experiment, trainer_on


@pytest.fixture
def cfg(tmp_path):
    return update_config(small_experiment(tmp_path / "texts"), {"mesh": {"fsdp": 2}})


@pytest.fixture
def published(cfg, tmp_path):
    """The weights of a seed that is not the run's."""
    state = jax.jit(cfg.model.build().init)(7)
    to_hugging_face(tmp_path / "hf", cfg.model, state)
    return state


def from_published(cfg, tmp_path):
    """Returns the config of a run that begins with the weights in a folder `hf`."""
    named = with_changes(cfg, [f"pretrained(path={tmp_path / 'hf'})"], Hardware.parse("cpu-2"))
    assert named.init_from == HuggingFace.Config(path=str(tmp_path / "hf"))
    return named


def same(one, other):
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, one, other)))


@pytest.mark.slow
def test_first_state_is_the_published_model(cfg, published, tmp_path):
    begun = trainer_on(from_published(cfg, tmp_path), 2)
    first, random = begun.first_state(), trainer_on(cfg, 2).first_state()
    assert same(first.model, published)
    assert not same(random.model, published)
    assert jax.tree.map(lambda leaf: leaf.sharding, first) == begun.compiler.shardings()
    assert same(first.opt_state, random.opt_state)
    assert int(first.step) == 0


@pytest.mark.slow
def test_a_run_resumes_without_the_weights_that_it_began_with(cfg, published, tmp_path):
    begun = from_published(cfg, tmp_path)
    trainer_on(update_config(begun, {"max_steps": 2}), 2).run(tmp_path / "run", quiet=True)
    kept = (tmp_path / "run" / "initial_weights.txt").read_text()
    assert "head.weight" in kept
    assert "lm_head.weight (model.safetensors)" in kept
    (tmp_path / "hf").rename(tmp_path / "gone")
    result = trainer_on(update_config(begun, {"max_steps": 3}), 2).run(tmp_path / "run", quiet=True)
    assert (tmp_path / "run" / "initial_weights.txt").read_text() == kept
    assert result.step == 3


@pytest.mark.slow
def test_adapters_begin_beside_published_weights(cfg, published, tmp_path):
    adapted = LoRA(rank=2, targets=("**.attention",)).apply(cfg, Hardware.parse("cpu-2"))
    state = trainer_on(from_published(adapted, tmp_path), 2).first_state().model
    queries = state["decoder"]["stack"]["layer"]["attention"]["q"]
    plain = published["decoder"]["stack"]["layer"]["attention"]["q"]["weight"]
    assert np.array_equal(queries["base"]["weight"], plain)
    assert not np.any(queries["lora_up"]["weight"])
    assert np.any(queries["lora_down"]["weight"])


def test_how_it_is_trained_may_differ_and_the_model_may_not(cfg, published, tmp_path):
    begun = from_published(cfg, tmp_path)
    narrow = update_config(begun, {"model.dtypes": DTypes(param="bfloat16")})
    assert trainer_on(narrow, 2).first_state().model["head"]["weight"].dtype == "bfloat16"
    other = update_config(begun, {"**.position.theta": 5.0})
    with pytest.raises(ConfigError, match=r"- .*position.theta: 10000.0\n\+ .*position.theta: 5.0"):
        trainer_on(other, 2).first_state()
