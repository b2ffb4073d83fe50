"""Initial weights from another run or a pretrained checkpoint, edited: laws that hold for both."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from numpy_state import numpy_state
from rounding import assert_same_to_rounding

from axcore.config import evolve, replace_config, update_config
from axcore.errors import CheckpointError, ConfigError
from axcore.interop import (
    GrowVocabulary,
    HuggingFace,
    RenameWeights,
    StackDepth,
    Upcycle,
    to_hugging_face,
)
from axcore.layers import FeedForward, MoE, ScannedLayers, Stack
from axcore.learner import EMA
from axcore.models import llama2
from axcore.modifiers import with_changes
from axcore.module import functional
from axcore.parallel import PARAM_RULES, param_shardings
from axcore.plugins import Hardware
from axcore.runs import RunWeights, import_run, load_run
from axcore.testing import small_experiment, trainer_on
from axcore.trainer.run_directory.run_history import RUN_HISTORY_NAME

TOY = llama2("toy")
TOKENS = jnp.arange(24, dtype=jnp.int32).reshape(2, 12)
SOURCES = {"run": RunWeights, "published": HuggingFace}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The weights of one model: published, and as a run of it."""
    folder = tmp_path_factory.mktemp("weights")
    state = jax.tree.map(jnp.asarray, numpy_state(TOY.build().param_specs()))
    to_hugging_face(folder / "published", TOY, state)
    import_run(folder / "published", folder / "run")
    return folder, state


@pytest.fixture(params=SOURCES)
def begin(request, folders):
    """A function from a config, and fields of `init_from`, to the first state and the table."""

    def begun(cfg, wanted=None, **fields):
        source = SOURCES[request.param].Config(path=str(folders[0] / request.param), **fields)
        plan = source.build().plan(cfg)
        return plan.read(abstract(cfg) if wanted is None else wanted), plan.table()

    begun.state = folders[1]
    return begun


def abstract(cfg):
    return jax.eval_shape(lambda: cfg.build().init(0))


def sharded(cfg, axes=(("fsdp", 4), ("expert", 2))):
    """Returns the description of a state that is split over 8 devices."""
    names, sizes = zip(*axes, strict=True)
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(sizes), names)
    rules = {name: tuple(a for a in found if a in names) for name, found in PARAM_RULES.items()}
    shardings = param_shardings(cfg.build().param_specs(), rules, mesh)
    return jax.tree.map(lambda leaf, one: leaf.update(sharding=one), abstract(cfg), shardings)


def logits(cfg, state, tokens=TOKENS):
    return functional(cfg.build(), state, tokens, method="logits")[0]


def layers(state):
    return state["decoder"]["stack"]["layer"]


def deeper(num_layers):
    return update_config(TOY, {"decoder.stack.num_layers": num_layers})


def with_experts(cfg=TOY, **fields):
    fields = {"num_experts": 4, "top_k": 2, **fields}
    return replace_config(cfg, FeedForward, lambda ffn: MoE.Config(expert=ffn, **fields))


def same(one, other):
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, one, other)))


@pytest.mark.quick_one_in(2)
def test_a_run_begins_as_the_model_that_another_one_left(begin):
    state, table = begin(TOY)
    assert same(state, begin.state)
    assert "randomly initialized" not in table


@pytest.mark.quick_one_in(2)
def test_a_grown_vocabulary_leaves_the_logits_of_old_tokens(begin):
    cfg = update_config(TOY, {"vocab_size": 300})
    state, _ = begin(cfg, edits=(GrowVocabulary(),))
    assert_same_to_rounding(logits(cfg, state)[..., : TOY.vocab_size], logits(TOY, begin.state))


@pytest.mark.quick_one_in(2)
def test_equal_experts_compute_what_the_feed_forward_did(begin):
    state, table = begin(with_experts(), edits=(Upcycle(),))
    np.testing.assert_allclose(
        logits(with_experts(), state), logits(TOY, begin.state), atol=2e-5, rtol=1e-5
    )
    lines = dict(line.split(maxsplit=1) for line in table.splitlines())
    assert lines["decoder.stack.layer.feed_forward.router.linear.weight"] == "randomly initialized"
    assert "in 8 places" in lines["decoder.stack.layer.feed_forward.experts.expert.gate.weight"]


@pytest.mark.quick_one_in(2)
def test_noise_differs_by_expert_and_seed(begin):
    edits = (Upcycle(noise=0.1, seed=3),)
    state, table = begin(with_experts(), edits=edits)
    up = layers(state)["feed_forward"]["experts"]["expert"]["up"]["weight"]
    dense = layers(begin.state)["feed_forward"]["up"]["weight"]
    noise = up - dense[:, None]
    size = np.sqrt(np.mean(np.square(dense), axis=(1, 2)))
    np.testing.assert_allclose(np.std(noise, axis=(1, 2, 3)) / size, 0.1, rtol=0.1)
    assert not np.array_equal(up[:, 0], up[:, 1])
    assert "with noise of 0.1, seed 3" in table
    other, _ = begin(with_experts(), edits=(Upcycle(noise=0.1, seed=4),))
    assert not same(other, state)


@pytest.mark.parametrize(
    ("edit", "order"),
    [
        (StackDepth(), [0, 1, 0, 1]),
        (StackDepth(order="interleaved"), [0, 0, 1, 1]),
        (StackDepth(layers=(1, 1, 0)), [1, 1, 0]),
        (StackDepth(layers=(1,)), [1]),
    ],
)
def test_layers_are_those_of_the_source_in_the_order(begin, edit, order):
    state, _ = begin(deeper(len(order)), edits=(edit,))
    expected = jax.tree.map(lambda leaf: leaf[np.array(order)], layers(begin.state))
    assert same(layers(state), expected)
    assert same(state["head"], begin.state["head"])


@pytest.mark.quick_one_in(2)
def test_copies_that_add_nothing_compute_what_the_source_did(begin):
    edit = StackDepth(order="interleaved", copies_add_nothing=True)
    state, table = begin(deeper(4), edits=(edit,))
    assert_same_to_rounding(logits(deeper(4), state), logits(TOY, begin.state))
    assert table.count("copies zero") == 2
    with pytest.raises(ConfigError, match=r"outputs '\*\*\.nothing', which matches no array"):
        begin(deeper(4), edits=(evolve(edit, outputs=("**.nothing",)),))
    with pytest.raises(ConfigError, match=r"layer\.1\.feed_forward is among outputs"):
        begin(deeper(4), edits=(evolve(edit, outputs=("**.attention.out.**",)),))


@pytest.mark.quick_one_in(2)
def test_edits_add_up(begin):
    cfg = with_experts(update_config(deeper(4), {"vocab_size": 300}))
    deep = StackDepth(copies_add_nothing=True)
    state, _ = begin(cfg, edits=(deep, Upcycle(), GrowVocabulary()))
    found = logits(cfg, state)[..., : TOY.vocab_size]
    np.testing.assert_allclose(found, logits(TOY, begin.state), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "edit", [RenameWeights(names={"a": "b"}), GrowVocabulary(), Upcycle(), StackDepth()], ids=str
)
def test_an_edit_that_is_there_already_is_refused(tmp_path, edit):
    weights = RunWeights.Config(path=str(tmp_path))
    cfg = evolve(small_experiment(tmp_path / "texts"), init_from=weights)
    once = edit.apply(cfg, Hardware.parse("cpu-1"))
    with pytest.raises(ConfigError, match=f"has the edit {type(edit).__name__} .* already"):
        edit.apply(once, Hardware.parse("cpu-1"))


@pytest.mark.slow
def test_edits_are_the_same_on_eight_devices(begin):
    cfg = with_experts(update_config(deeper(4), {"vocab_size": 304}))
    edits = (StackDepth(), Upcycle(noise=0.1), GrowVocabulary())
    whole, table = begin(cfg, edits=edits, fresh=("**.stack.layer[3].attention.**",))
    wanted = sharded(cfg)
    split, _ = begin(cfg, wanted=wanted, edits=edits, fresh=("**.stack.layer[3].attention.**",))
    assert jax.tree.map(lambda leaf: leaf.sharding, split) == jax.tree.map(
        lambda leaf: leaf.sharding, wanted
    )
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(split), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert "1 of 4 randomly initialized" in table


def test_part_of_a_leaf_may_begin_as_in_a_new_model(begin):
    state, _ = begin(TOY, fresh=("**.stack.layer[1].attention.q.weight",))
    queries = layers(state)["attention"]["q"]["weight"]
    random = layers(jax.jit(TOY.build().init)(0))["attention"]["q"]["weight"]
    assert np.array_equal(queries[0], layers(begin.state)["attention"]["q"]["weight"][0])
    assert np.array_equal(queries[1], random[1])


def test_only_what_globs_name_is_read(begin):
    state, table = begin(TOY, read=("decoder.embedding.**", "**.attention.**"))
    assert same(layers(state)["attention"], layers(begin.state)["attention"])
    assert not same(state["head"], begin.state["head"])
    assert table.count("randomly initialized") == len(table.splitlines()) - 5
    with pytest.raises(ConfigError, match=r"'encoder\.\*\*' matches no array of the model"):
        begin(TOY, read=("encoder.**",))


def test_renamed_arrays_go_where_their_new_names_say(begin):
    swap = RenameWeights(
        names={
            "{a}.feed_forward.gate.weight": "{a}.kept",
            "{a}.feed_forward.up.weight": "{a}.feed_forward.gate.weight",
            "{a}.kept": "{a}.feed_forward.up.weight",
        }
    )
    state, _ = begin(TOY, edits=(swap,))
    mine, theirs = (layers(one)["feed_forward"] for one in (state, begin.state))
    assert same(mine["gate"], theirs["up"])
    assert same(mine["up"], theirs["gate"])
    assert same(mine["down"], theirs["down"])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"trunk.{rest}": "decoder.{rest}"}, r"'trunk\.\{rest\}', which matches no array"),
        ({"{a}.weight": "head.weight"}, "gives several arrays one name: head.weight"),
        ({"head.{a}": "head.{b}"}, r"cannot be filled in: KeyError\('b'\)"),
        ({"{a}.{a}": "head"}, "has a word in braces twice"),
    ],
)
def test_renames_that_cannot_be_are_errors(begin, names, message):
    with pytest.raises(ConfigError, match=message):
        begin(TOY, edits=(RenameWeights(names=names),))


def test_what_has_no_match_is_named_with_its_shape(begin):
    moved = RenameWeights(names={"head.{a}": "top.{a}"})
    with pytest.raises(
        ConfigError,
        match=r"(?s)head\.weight of the model is not in the source.*"
        r"head\.weight \(as top\.weight\) is in the source; nothing here has it",
    ):
        begin(TOY, edits=(moved,))
    begin(TOY, edits=(moved,), fresh=("head.**",), unused=("top.**",))
    with pytest.raises(ConfigError, match="matches no array of the source that the model lacks"):
        begin(TOY, unused=("top.**",))
    wide = update_config(TOY, {"**.hidden_dim": 80})
    with pytest.raises(ConfigError, match=r"down\.weight has shape \[80, 64\]; decoder"):
        begin(wide, may_differ=("**.hidden_dim",))


def test_models_may_differ_where_that_is_said(begin):
    far = update_config(TOY, {"**.position.theta": 5e5})
    with pytest.raises(ConfigError, match=r"\+ .*position\.theta: 500000\.0"):
        begin(far)
    state, _ = begin(far, may_differ=("**.position",))
    assert same(state, begin.state)
    with pytest.raises(ConfigError, match="allows nothing: the models do not differ there"):
        begin(TOY, may_differ=("**.position",))


def test_edits_with_nothing_to_do_are_errors(begin):
    with pytest.raises(ConfigError, match="has nothing to do: the vocabulary has 264 tokens"):
        begin(TOY, edits=(GrowVocabulary(),))
    with pytest.raises(ConfigError, match="finds no expert"):
        begin(TOY, edits=(Upcycle(),))
    with pytest.raises(ConfigError, match=r"has layers \[0, 7, 1\]; the source has 2 layers"):
        begin(deeper(3), edits=(StackDepth(layers=(0, 7, 1)),))


def test_a_damaged_checkpoint_is_an_error_and_not_read(folders, tmp_path):
    import_run(folders[0] / "published", tmp_path / "run")
    file = max((tmp_path / "run" / "checkpoints").rglob("*"), key=lambda one: one.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    plan = RunWeights.Config(path=str(tmp_path / "run")).build().plan(TOY)
    with pytest.raises(CheckpointError, match="step 0 is damaged"):
        plan.read(abstract(TOY))


def test_a_step_or_a_run_that_is_not_there_is_an_error(folders, tmp_path):
    run = folders[0] / "run"
    with pytest.raises(CheckpointError, match="no checkpoint of step 5; there are: 0"):
        RunWeights.Config(path=str(run), step=5).build().plan(TOY)
    with pytest.raises(CheckpointError, match="not a run directory"):
        RunWeights.Config(path=str(tmp_path)).build().plan(TOY)


@pytest.mark.slow
def test_layers_that_are_not_scanned_are_each_read_for_themselves(tmp_path):
    cfg = replace_config(small_experiment(tmp_path / "texts"), ScannedLayers, Stack.Config())
    trainer_on(cfg, 1).run(tmp_path / "first", quiet=True)
    before = layers(load_run(tmp_path / "first").state)
    weights = RunWeights.Config(path=str(tmp_path / "first"), edits=(StackDepth(),))
    deep = update_config(cfg, {"model.decoder.stack.num_layers": 4, "init_from": weights})
    after = layers(trainer_on(deep, 1).first_state().model)
    for number in range(4):
        assert same(after[str(number)], before[str(number % 2)])


@pytest.mark.slow
def test_a_run_begins_with_the_averages_that_another_one_evaluates(tmp_path):
    cfg = update_config(
        small_experiment(tmp_path / "texts"),
        {"mesh": {"fsdp": 2}, "learner.ema": EMA.Config(decay=0.5)},
    )
    trainer_on(cfg, 2).run(tmp_path / "first", quiet=True)
    edits = [
        f"from_run(path={tmp_path / 'first'})",
        "rename_weights(names={'head.{a}': 'top.{a}'})",
        "rename_weights(names={'top.{a}': 'head.{a}'})",
    ]
    begun = trainer_on(with_changes(cfg, edits, Hardware.parse("cpu-2")), 2)
    assert same(begun.first_state().model, load_run(tmp_path / "first").state)
    begun.run(tmp_path / "second", quiet=True)
    assert (
        f"({tmp_path / 'first'}, step 2)" in (tmp_path / "second/initial_weights.txt").read_text()
    )
    start = json.loads((tmp_path / "second" / RUN_HISTORY_NAME).read_text().splitlines()[0])
    assert f"path: '{tmp_path / 'first'}'" in "\n".join(start["init_from"])
    assert "RenameWeights" in "\n".join(start["init_from"])
