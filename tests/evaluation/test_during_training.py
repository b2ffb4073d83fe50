"""Evaluation during training changes no bit of it."""

import json

import jax
import numpy as np
import pytest

from axcore.config import evolve, update_config
from axcore.evaluation import EvaluateTasks
from axcore.experiments.tiny import tiny
from axcore.plugins import Hardware
from axcore.trainer import Trainer, resolve

SHORT = {
    "model.dim": 32,
    "model.decoder.stack.num_layers": 1,
    "model.decoder.stack.unroll": 1,
    "**.hidden_dim": 32,
    "data.seq_len": 32,
    "data.validation_batches": 1,
    "**.warmup_steps": 1,
    "max_steps": 4,
}


def trainer(cfg):
    return Trainer(resolve(cfg, Hardware.parse("cpu-1")), devices=jax.devices()[:1])


@pytest.mark.slow
def test_parameters_are_bit_by_bit_those_of_a_run_without_it(tmp_path):
    cfg = update_config(tiny(), SHORT)
    guard = EvaluateTasks.Config(tasks=("arithmetic",), every_steps=2, limit=3)
    plain = trainer(cfg).run(tmp_path / "plain", quiet=True)
    watched = trainer(evolve(cfg, guards=(guard,))).run(tmp_path / "watched", quiet=True)
    pairs = zip(jax.tree.leaves(plain.state), jax.tree.leaves(watched.state), strict=True)
    for one, other in pairs:
        if jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    lines = (tmp_path / "watched/metrics.jsonl").read_text().splitlines()
    found = [one for one in map(json.loads, lines) if one["split"] == "evaluation"]
    assert [one["step"] for one in found] == [2, 4]
    kept = json.loads((tmp_path / "watched/evaluation/4/arithmetic.json").read_text())
    assert kept["metrics"]["f1"]["value"] == found[1]["arithmetic/f1"]
    digests = [
        json.loads((tmp_path / f"watched/evaluation/{step}/model.json").read_text())["weights"]
        for step in (2, 4)
    ]
    assert digests[0] != digests[1]
