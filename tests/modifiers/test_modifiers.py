"""What each modifier does beyond the suite's laws, and what it refuses."""

import pytest

from axcore.config import evolve, find_config, from_json, to_json, update_config
from axcore.errors import ConfigError
from axcore.experiments.tiny import tiny
from axcore.layers import FeedForward, Pipeline, PlainFeedForward, TransformerLayer
from axcore.modifiers import (
    Accumulate,
    Chain,
    Kernels,
    MeshShape,
    MicroBatches,
    Named,
    Pipelined,
    RematModifier,
    ReplaceConfig,
    Shard,
    UpdateConfig,
    apply_modifier,
)
from axcore.modifiers.remat import REMAT_PRESETS
from axcore.parallel import PARAM_RULES
from axcore.plugins import Hardware

CPU = Hardware.parse("cpu-8")


def modified(modifier, cfg=None):
    return apply_modifier(cfg or tiny(), modifier, CPU, where="here")


# -- RematModifier ------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", sorted(set(REMAT_PRESETS) - {"none"}))
def test_remat_sets_the_preset_in_every_layer(policy):
    layers = find_config(modified(RematModifier(policy=policy)), TransformerLayer)
    assert [layer.node.remat for layer in layers] == [REMAT_PRESETS[policy]]


def test_remat_none_switches_recomputation_off():
    full = modified(RematModifier(policy="full"))
    assert modified(RematModifier(policy="none"), full) == tiny()


def test_remat_at_a_path_leaves_the_layer_alone():
    cfg = modified(RematModifier(at="**.feed_forward"))
    layer = cfg.model.decoder.stack.layer
    assert layer.remat is None
    assert layer.feed_forward.remat == REMAT_PRESETS["full"]


def test_remat_of_an_unknown_policy_names_those_there_are():
    with pytest.raises(ConfigError, match="no remat policy 'minimol'; did you mean 'minimal'"):
        modified(RematModifier(policy="minimol"))


def test_remat_without_a_layer_says_where_to_put_it():
    with pytest.raises(ConfigError, match="contains no transformer layer to recompute"):
        RematModifier().apply(tiny().learner, CPU)


# -- Layout --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mesh", "batch_size", "rows", "expected"),
    [
        ({"fsdp": -1}, 64, 8, 1),
        ({"fsdp": -1}, 64, 4, 2),
        ({"fsdp": -1}, 64, 3, 4),
        ({"data": 2, "model": -1}, 64, 8, 4),
        ({"fsdp": -1}, 48, 4, 2),
        ({"fsdp": -1}, 8, 1, 1),
    ],
)
def test_micro_batches_leave_each_device_few_enough_rows(mesh, batch_size, rows, expected):
    cfg = update_config(tiny(), {"mesh": mesh, "data.batch_size": batch_size})
    assert modified(MicroBatches(rows_per_device=rows), cfg).num_micro_batches == expected


def test_micro_batches_count_the_devices_of_all_slices():
    cfg = update_config(
        tiny(), {"mesh": {"fsdp": -1}, "slices": {"data": 2}, "data.batch_size": 64}
    )
    assert modified(MicroBatches(rows_per_device=4), cfg).num_micro_batches == 2


def test_micro_batches_of_no_rows_are_refused():
    with pytest.raises(ConfigError, match="rows_per_device is 0; expected 1 or more"):
        modified(MicroBatches(rows_per_device=0), evolve(tiny(), mesh={"fsdp": -1}))


def test_micro_batches_need_a_mesh():
    with pytest.raises(ConfigError, match="counts the rows of a device"):
        modified(MicroBatches())


def test_accumulation_multiplies():
    assert modified(Chain(modifiers=(Accumulate(), Accumulate(factor=3)))).num_micro_batches == 6


def test_mesh_shape_sets_the_mesh_and_the_slices():
    cfg = modified(MeshShape(mesh={"fsdp": -1}, slices={"data": 2}))
    assert (cfg.mesh, cfg.slices) == ({"fsdp": -1}, {"data": 2})


def test_shard_changes_the_entries_it_names_and_no_other():
    cfg = modified(Shard(params={"embed": ("fsdp", "model")}, activations={"time": ()}))
    assert cfg.sharding.param_rules == {**PARAM_RULES, "embed": ("fsdp", "model")}
    assert cfg.sharding.activation_rules["time"] == ()


def test_shard_over_an_unknown_mesh_axis_is_refused():
    with pytest.raises(ConfigError, match="split over 'modle', which is not a mesh axis") as error:
        modified(Shard(params={"mlp": ("modle",)}))
    assert "did you mean 'model'" in error.value.hint


# -- Edits ---------------------------------------------------------------------------------------


def test_replace_names_classes_by_text_and_fills_what_is_left_open():
    cfg = modified(
        ReplaceConfig(
            target="axcore.layers:FeedForward",
            new="axcore.layers:PlainFeedForward",
            values={"activation": "relu"},
        )
    )
    ((_, plain),) = find_config(cfg, PlainFeedForward)
    ((_, gated),) = find_config(tiny(), FeedForward)
    assert (plain.activation, plain.hidden_dim) == ("relu", gated.hidden_dim)


def test_replace_takes_a_config_too():
    new = PlainFeedForward.Config(hidden_dim=40)
    cfg = modified(ReplaceConfig(target="axcore.layers:FeedForward", new=new))
    assert cfg.model.decoder.stack.layer.feed_forward == new


@pytest.mark.parametrize("text", ["axcore.layers:FeedFroward", "os:system", "FeedForward", "a:b:c"])
def test_replace_refuses_text_that_names_no_config_class(text):
    with pytest.raises(ConfigError, match="names no config class"):
        modified(ReplaceConfig(target=text, new="axcore.layers:PlainFeedForward"))


def test_replace_that_finds_nothing_is_refused():
    with pytest.raises(ConfigError, match="no PostNorm"):
        modified(ReplaceConfig(target="axcore.layers:PostNorm", new="axcore.layers:PreNorm"))


def test_update_that_matches_nothing_is_refused():
    with pytest.raises(ConfigError, match="matches nothing"):
        modified(UpdateConfig(changes={"**.droput": 0.1}))


def test_named_makes_the_change_of_that_name():
    expected = modified(RematModifier(policy="minimal"))
    assert modified(Named(change="remat(policy=minimal)")) == expected


def test_kernels_keep_earlier_pins_and_names():
    cfg = update_config(
        tiny(), {"kernels.pins": {"rms_norm": "reference"}, "kernels.allow": ("portable",)}
    )
    cfg = modified(Kernels(pins={"attention": "portable"}, allow=("portable", "blockwise")), cfg)
    assert cfg.kernels.pins == {"attention": "portable", "rms_norm": "reference"}
    assert cfg.kernels.allow == ("portable", "blockwise")


def test_chain_names_the_link_that_changes_nothing():
    chain = Chain(modifiers=(Accumulate(), MeshShape(mesh={"data": 8})))
    assert modified(chain).num_micro_batches == 2
    with pytest.raises(ConfigError, match="changes nothing") as error:
        modified(chain, evolve(tiny(), mesh={"data": 8}))
    assert error.value.where == "Chain.modifiers[1]"


# -- What every modifier must be -------------------------------------------------------------------


def test_modifier_that_lacks_a_value_is_refused():
    with pytest.raises(ConfigError, match="MeshShape lacks mesh") as error:
        modified(MeshShape())
    assert error.value.hint == "MeshShape(mesh=...)"


def test_what_is_no_modifier_is_refused():
    with pytest.raises(ConfigError, match=r"is not a modifier: it has no apply\(cfg, hardware\)"):
        modified(FeedForward.Config())


def test_modifiers_are_saved_and_read_back():
    chain = Chain(
        modifiers=(
            ReplaceConfig(target="axcore.layers:FeedForward", new=PlainFeedForward.Config()),
            UpdateConfig(changes={"**.rate": 0.5}),
            Shard(params={"embed": ("fsdp", "model")}),
            RematModifier(policy="minimal"),
        )
    )
    assert from_json(to_json(chain)) == chain


def test_pipelined_puts_layers_in_stages_and_leaves_the_layers_alone():
    cfg = modified(Pipelined(num_micro_batches=4, num_rounds=2), tiny())
    stack, before = cfg.model.decoder.stack, tiny().model.decoder.stack
    assert isinstance(stack, Pipeline.Config)
    assert (stack.num_micro_batches, stack.num_rounds) == (4, 2)
    assert (stack.num_layers, stack.layer) == (before.num_layers, before.layer)
    with pytest.raises(ConfigError, match="contains no ScannedLayers to make a pipeline of"):
        modified(Pipelined(), cfg)
