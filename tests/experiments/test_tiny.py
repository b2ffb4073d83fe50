"""`tiny` at toy size: it learns, and so does what a swap of every feed-forward makes of it."""

import jax
import pytest

from axcore.config import evolve, find_config, replace_config, update_config
from axcore.experiments.named import load_resolved
from axcore.experiments.tiny import tiny
from axcore.layers import FeedForward, PlainFeedForward, ScannedLayers, Stack
from axcore.module import count_params
from axcore.plugins import Hardware
from axcore.testing import trainer_on
from axcore.trainer import Trainer


def at_toy_size(cfg):
    return update_config(
        cfg,
        {
            "model.dim": 32,
            "**.feed_forward.hidden_dim": 48,
            "**.stack.num_layers": 2,
            "data.seq_len": 32,
            "data.batch_size": 4,
            "data.validation_batches": 1,
            "data.validation_fraction": 0.3,
            "learner.schedule.warmup_steps": 2,
            "learner.schedule.peak": 0.02,
            "max_steps": 12,
            "logging.every_steps": 4,
        },
    )


def swapped(cfg):
    return replace_config(cfg, FeedForward, PlainFeedForward.Config())


def test_tiny_is_a_small_model_of_bytes():
    cfg = tiny()
    model = cfg.model.build()
    assert count_params(model.param_specs()) < 1_000_000
    assert cfg.model.vocab_size >= cfg.data.tokenizer.build().vocab_size


def test_replacing_every_feed_forward_leaves_none_and_keeps_their_sizes():
    cfg = swapped(tiny())
    assert find_config(cfg, FeedForward) == ()
    plain = find_config(cfg, PlainFeedForward)
    assert [found.node.hidden_dim for found in plain] == [
        found.node.hidden_dim for found in find_config(tiny(), FeedForward)
    ]


def test_replacing_the_scan_by_a_stack_swaps_the_feed_forward_of_every_layer():
    unrolled = replace_config(tiny(), ScannedLayers, Stack.Config())
    model = swapped(unrolled).model.build()
    layers = [layer.feed_forward for layer in model.decoder.stack.layer]
    assert len(layers) == 4
    assert all(type(layer) is PlainFeedForward for layer in layers)


@pytest.mark.slow
def test_the_swapped_model_learns_within_a_few_steps(text_of_python, tmp_path):
    cfg = update_config(at_toy_size(swapped(tiny())), {"data.source": text_of_python})
    losses = []
    result = trainer_on(cfg, 1).run(
        tmp_path, [lambda event: losses.append(getattr(event, "metrics", {}).get("loss"))]
    )
    first = next(loss for loss in losses if loss is not None)
    assert result.is_complete
    assert result.validation["loss"] < first - 1.0


@pytest.fixture
def text_of_python(tmp_path_factory):
    """A hundredth of the standard library: reading all of it takes longer than the training."""
    import sysconfig
    from pathlib import Path

    from axcore.data import TextFiles

    folder = tmp_path_factory.mktemp("library")
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:20]:
        (folder / path.name).write_bytes(path.read_bytes())
    return TextFiles.Config(folder=str(folder), glob="*.py", on_bad="skip")


def nbytes(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@pytest.mark.slow
def test_llama3_8b_on_one_gpu_has_four_bytes_a_parameter_and_two_of_optimizer_state():
    resolved = load_resolved("llama3-8b", hardware=Hardware.parse("gpu-h200-1"))
    cfg = evolve(resolved.config, data=resolved.config.data.for_shapes())
    trainer = Trainer(evolve(resolved, config=cfg), devices=jax.devices()[:1])
    state = trainer.compiler.abstract_state()
    num_params = count_params(trainer.model.param_specs())
    assert num_params == 8_030_261_248
    assert nbytes(state.model) == 4 * num_params
    assert nbytes(state.opt_state) == pytest.approx(2 * num_params, rel=0.005)
