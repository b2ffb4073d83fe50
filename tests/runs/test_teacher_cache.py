"""A teacher's likeliest tokens in files: written once for rows, and read with these rows alone."""

import jax
import numpy as np
import pytest

import axcore as ax
from axcore.data.packing.packing import PADDING_ROW
from axcore.errors import CheckpointError, ConfigError, DataError
from axcore.layers import packed_rows
from axcore.module import functional
from axcore.plugins import Hardware
from axcore.runs import DistillFromCache, load_run, write_teacher_cache
from axcore.testing import small_experiment, trainer_on

CPU = Hardware.parse("cpu-1")


@pytest.fixture(scope="module")
def cfg(tmp_path_factory):
    """A student's config, whose rows are short."""
    cfg = small_experiment(tmp_path_factory.mktemp("student") / "texts")
    return ax.update_config(cfg, {"mesh": {"fsdp": 1}, "model.dim": 16, "**.num_layers": 1})


@pytest.fixture(scope="module")
def cache(cfg, trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache") / "teacher"
    assert write_teacher_cache(trained[0], cfg.data, folder, top_k=4, batch_size=4) > 4
    return folder


def taught(cfg, cache):
    return DistillFromCache(teacher_cache=str(cache)).apply(cfg, CPU)


def test_each_place_has_the_tokens_that_the_teacher_finds_likeliest(cfg, cache, trained):
    rows = taught(cfg, cache).data.build().rows("train")
    batch = rows.batch([2, PADDING_ROW, 0])
    run = load_run(trained[0])
    arrays = jax.tree.map(jax.numpy.asarray, {n: batch[n] for n in ("tokens", "positions")})
    info = packed_rows({**arrays, "segment_ids": jax.numpy.asarray(batch["segment_ids"])})
    logits, _ = functional(run.model, run.state, arrays["tokens"], info, method="logits")
    every = np.asarray(jax.nn.log_softmax(logits))
    found = np.take_along_axis(every, batch["teacher_tokens"], axis=-1)
    is_real = batch["segment_ids"] > 0
    np.testing.assert_allclose(found[is_real], batch["teacher_log_probs"][is_real], atol=1e-4)
    wanted = -np.sort(-every, axis=-1)[..., :4]
    np.testing.assert_allclose(wanted[is_real], batch["teacher_log_probs"][is_real], atol=1e-4)
    assert not batch["teacher_log_probs"][1].any()


@pytest.mark.slow
def test_a_run_learns_from_it_resumes_and_is_read_without_it(cfg, cache, tmp_path):
    cfg = ax.update_config(taught(cfg, cache), {"max_steps": 4, "checkpoint.every_steps": 2})
    trainer_on(cfg, 1).run(tmp_path / "whole", quiet=True)
    trainer_on(cfg, 1).run(tmp_path / "halves", quiet=True)
    trainer_on(cfg, 1).run(tmp_path / "halves", quiet=True, from_step=2)
    whole, halves = (load_run(tmp_path / name) for name in ("whole", "halves"))
    jax.tree.map(np.testing.assert_array_equal, whole.state, halves.state)
    losses = whole.metrics["train"]["loss"]
    assert losses[-1] < losses[0]
    cache.rename(tmp_path / "gone")
    assert load_run(tmp_path / "whole").generate("a", max_tokens=2).num_tokens <= 2
    (tmp_path / "gone").rename(cache)


@pytest.mark.parametrize("change", [{"data.seed": 7}, {"data.packing": "best_fit"}])
def test_other_rows_are_refused(cfg, cache, change):
    data = taught(ax.update_config(cfg, change), cache).data
    with pytest.raises(DataError, match="belongs to other rows"):
        data.build().train()


def test_a_folder_that_is_none_is_named(cfg, tmp_path):
    with pytest.raises(DataError, match=r"has no teacher_cache\.json") as caught:
        taught(cfg, tmp_path)
    assert "axcore data teach" in caught.value.hint


def test_a_folder_that_is_there_is_not_lost(cfg, cache, trained):
    with pytest.raises(CheckpointError, match="not empty"):
        write_teacher_cache(trained[0], cfg.data, cache, top_k=4)


def test_what_cannot_be_written_is_refused(cfg, trained, tmp_path):
    with pytest.raises(ConfigError, match="top_k is 999"):
        write_teacher_cache(trained[0], cfg.data, tmp_path / "a", top_k=999)
    again = ax.evolve(cfg.data, repacks_each_epoch=True)
    with pytest.raises(ConfigError, match="rows that stay"):
        write_teacher_cache(trained[0], again, tmp_path / "a")
    assert not (tmp_path / "a").exists()
