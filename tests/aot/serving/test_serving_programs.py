"""What `axcore aot --serve` compiles is what an engine compiles, program by program."""

import jax
import pytest

from axcore.aot.serving.measure import ServingPrograms
from axcore.aot.serving.report import ServingLoad
from axcore.config import update_config
from axcore.data import ByteTokenizer
from axcore.experiments.tiny import tiny
from axcore.inference import EngineConfig
from axcore.inference.engine_core import build_engine
from axcore.ops import KernelPolicy, use_policy
from axcore.parallel import make_mesh
from axcore.plugins import Hardware

HARDWARE = Hardware.parse("cpu-2")


def pair(engine):
    """Returns the programs of the report and those of an engine, for the same config."""
    cfg = update_config(tiny(), {"mesh": {"model": 2}, "**.num_layers": 1})
    devices = jax.devices()[:2]
    ahead = ServingPrograms(cfg, HARDWARE, devices, ServingLoad(engine=engine, prompt=20))
    model, mesh = cfg.model.build(), make_mesh({"model": 2}, devices)
    with use_policy(KernelPolicy.of(cfg, HARDWARE)):
        parts = build_engine(
            model, model.init(0), ByteTokenizer.Config().build(), engine, mesh=mesh, draft=None
        )
    return ahead, parts


@pytest.mark.parametrize("changes", [{}, {"num_decode_steps": 1}, {"fixed_shapes": True}])
@pytest.mark.quick_one_in(3)
def test_a_report_compiles_programs_of_the_engine(changes):
    ahead, parts = pair(
        EngineConfig(max_num_seqs=2, max_length=32, max_num_batched_tokens=24, **changes)
    )
    used = {key for rows in ahead.decode_buckets for key in ahead.token_keys(rows)}
    used |= {*ahead.reading_keys}
    assert used < set(ahead.keys)
    assert ahead.cache_config == parts.cache_config
    for key in used:
        with use_policy(KernelPolicy.of(tiny(), HARDWARE)):
            theirs = parts.programs._lowered(key).as_text()
        assert ahead.lowered(key).lowered.as_text() == theirs, key
