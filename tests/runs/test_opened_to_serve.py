"""What is served: a run as it was trained, or with another way to keep its keys and values."""

import re
import time

import jax
import numpy as np
import pytest

from axcore.errors import ConfigError
from axcore.inference import EngineConfig, Request, Sampling
from axcore.runs import open_model
from axcore.serving import ServerConfig, start_engine

SMALL = ServerConfig(
    engine=EngineConfig(max_num_seqs=1, max_num_batched_tokens=16, num_decode_steps=1)
)
GREEDY = Sampling(temperature=0.0)


def answer(opened):
    with start_engine(opened, SMALL).engine as engine:
        request = Request(prompt=(100, 101, 102), max_tokens=8, sampling=GREEDY)
        caches = jax.tree.leaves(engine._programs.caches)
        return engine.submit(request).result(timeout=60).tokens, {one.dtype for one in caches}


@pytest.mark.slow
def test_a_change_of_caches_serves_the_same_weights(trained):
    plain = open_model(trained[0])
    narrow = open_model(trained[0], changes=("quantized_cache",))
    (tokens, kept), (near, narrow_kept) = answer(plain), answer(narrow)
    assert np.dtype("int8") in narrow_kept - kept
    assert [one.id for one in near][:1] == [one.id for one in tokens][:1]


@pytest.mark.slow
def test_one_line_says_when_all_programs_are_compiled(trained, caplog):
    caplog.set_level("INFO", "axcore.serving")
    with start_engine(open_model(trained[0]), SMALL).engine:
        deadline = time.monotonic() + 60
        while not caplog.messages:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert re.fullmatch(r"all programs are compiled, after \d+ s", "".join(caplog.messages))


def test_changes_of_parameters_are_refused(trained):
    with pytest.raises(ConfigError, match="other parameters"):
        open_model(trained[0], changes=("lora",))
