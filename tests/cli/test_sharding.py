"""`axcore config show --sharding`: the picture of what each device holds."""

import pytest

from axcore.cli.sharding import sharding_table
from axcore.config import evolve, replace_config, update_config
from axcore.errors import ShardingError
from axcore.experiments.tiny import tiny
from axcore.layers import Pipeline, ScannedLayers
from axcore.plugins import Hardware
from axcore.trainer import resolve

EIGHT = Hardware.parse("cpu-8")


def _lines(cfg):
    return sharding_table(resolve(cfg, EIGHT)).splitlines()


def test_every_parameter_has_a_line_with_its_parts_and_bytes():
    lines = _lines(evolve(tiny(), mesh={"fsdp": 4, "model": 2}))
    assert lines[0] == "mesh: fsdp 4 x model 2"
    (gate,) = [line for line in lines if "feed_forward.gate" in line]
    assert gate.split() == [
        "decoder.stack.layer.feed_forward.gate.weight",
        "4x128x384",
        *("-,", "fsdp,", "model"),
        f"{4 * 128 * 384 * 4 // 8:,}",
    ]


def test_what_stays_whole_is_named_and_everything_is_summed():
    lines = _lines(evolve(tiny(), mesh={"fsdp": 8}))
    start = next(i for i, line in enumerate(lines) if line.startswith("whole on every device"))
    assert lines[start + 1 : start + 4] == [
        "  decoder.norm.weight",
        "  decoder.stack.layer.attention_residual.norm.weight",
        "  decoder.stack.layer.feed_forward_residual.norm.weight",
    ]
    table = lines[lines[1:].index("") - 11 : lines[1:].index("") + 1]
    listed = sum(int(line.split()[-1].replace(",", "")) for line in table)
    assert f"{listed:,} bytes of parameters per device" in lines
    assert f"{2 * listed + 8:,} bytes of optimizer state per device" in lines  # two moments, counts


def test_on_one_device_nothing_is_called_whole():
    one = resolve(evolve(tiny(), mesh={"data": 1}), Hardware.parse("cpu-1"))
    lines = sharding_table(one).splitlines()
    assert lines[0] == "mesh: 1 device"
    assert not any("whole" in line for line in lines)


def test_pipelines_tell_their_bubble_and_slices_are_named():
    stack = Pipeline.Config(num_micro_batches=8, num_rounds=2)
    cfg = replace_config(tiny(), ScannedLayers, stack)
    cfg = evolve(cfg, mesh={"fsdp": 4}, slices={"pipeline": 2})
    lines = _lines(cfg)
    assert lines[:3] == [
        "mesh: pipeline 2 x fsdp 4",
        "slices: pipeline 2",
        "pipeline model.decoder.stack: 2 stages, 8 micro-batches, 2 rounds: 5.9 % bubble",
    ]
    (gate,) = [line for line in lines if "feed_forward.gate" in line]
    assert "-, pipeline, fsdp, -" in gate


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"mesh": {"fsdp": 3}}, "needs 3 devices; there are 8"),
        ({"mesh": {"pipeline": 8}}, "mesh axis pipeline of size 8"),
        ({"mesh": {"fsdp": 2, "model": 4}, "model.vocab_size": 270}, "vocab is 270, model is 4"),
        ({"mesh": {"fsdp": 8}, "param_rules": {"emb": ("fsdp",)}}, "'emb'"),
    ],
)
def test_what_a_run_would_refuse_is_refused(changes, text):
    with pytest.raises(ShardingError, match=text):
        _lines(update_config(tiny(), changes))
