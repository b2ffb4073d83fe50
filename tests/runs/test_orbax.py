"""`axcore convert orbax:...`: runs of MaxText's and AXLearn's checkpoints."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from commands import call
from safetensors.numpy import load_file
from trainer_checkpoints import (
    LAYERS,
    D,
    H,
    axlearn,
    axlearn_logits,
    maxtext,
    maxtext_logits,
    published,
    save_axlearn,
    save_axlearn_by_orbax,
    save_flax,
    save_maxtext,
    scanned,
)

from axcore.errors import CheckpointError, ConfigError
from axcore.interop.stored_arrays import find_stored_arrays
from axcore.module import functional
from axcore.runs import import_orbax, load_run

pytestmark = pytest.mark.filterwarnings("ignore:.*are not the model's but of training")
TOKENS = np.array([3, 1, 4, 1, 5, 9, 2, 6], np.int32)


def convert(folder, *more):
    return call(
        "convert", f"orbax:{folder / 'own'}", folder / "run", "--config", folder / "hf", *more
    )


def assert_same(folder, hf):
    """Exports the run, and compares every array with Hugging Face's, bit by bit."""
    call("convert", folder / "run", f"hf:{folder / 'back'}")
    found = load_file(folder / "back" / "model.safetensors")
    assert found.keys() == hf.keys()
    assert not [name for name in hf if found[name].tobytes() != hf[name].tobytes()]


def logits(folder):
    run = load_run(folder / "run")
    with jax.default_matmul_precision("highest"):
        found, _ = functional(run.model, run.state, jnp.asarray(TOKENS)[None], method="logits")
    return np.asarray(found)[0]


@pytest.mark.parametrize(("kind", "folds"), [("llama", True), ("mistral", True), ("qwen2", False)])
def test_a_checkpoint_of_maxtext_with_scanned_layers_is_read_bit_for_bit(tmp_path, kind, folds):
    hf = published(tmp_path / "hf", kind)
    save_maxtext(tmp_path / "own", scanned(maxtext(hf, folds=folds)))
    assert "MaxText's model" in convert(tmp_path)
    assert_same(tmp_path, hf)


@pytest.mark.parametrize("fused", [False, True])
def test_layers_of_maxtext_that_are_not_scanned_are_read(tmp_path, fused):
    hf = published(tmp_path / "hf", tie_word_embeddings=True)
    save_maxtext(tmp_path / "own", maxtext(hf, fused=fused))
    convert(tmp_path)
    assert_same(tmp_path, hf)


def test_parameters_of_an_nnx_model_are_read_without_its_random_keys(tmp_path):
    hf = published(tmp_path / "hf")
    tree = jax.tree.map(lambda array: {"value": array}, maxtext(hf))
    tree["decoder"]["layers_0"]["dropout"] = {"rngs": {"count": {"value": np.zeros(1, np.uint32)}}}
    with ocp.PyTreeCheckpointer() as saver:
        saver.save(tmp_path / "own", {"base": tree})
    convert(tmp_path)
    assert_same(tmp_path, hf)


def test_layers_may_be_stacked_in_the_first_dimension(tmp_path):
    hf = published(tmp_path / "hf")
    save_maxtext(tmp_path / "own", scanned(maxtext(hf), axis=0))
    convert(tmp_path)
    assert_same(tmp_path, hf)


@pytest.mark.parametrize("pairs", [False, True])
def test_the_run_computes_what_maxtext_does(tmp_path, pairs):
    tree = maxtext(published(tmp_path / "hf"), pairs=pairs)
    save_maxtext(tmp_path / "own", scanned(tree))
    convert(tmp_path, "--rotary-rows", "pairs" if pairs else "halves")
    expected = maxtext_logits(tree, TOKENS, pairs=pairs)
    np.testing.assert_allclose(logits(tmp_path), expected, rtol=1e-4, atol=1e-4)
    # The convention matters: with the other one the same arrays are another model.
    other = maxtext_logits(tree, TOKENS, pairs=not pairs)
    assert np.abs(other - expected).max() > 1e-2


@pytest.mark.parametrize("fuses", ["", "heads", "three"])
@pytest.mark.parametrize("save", [save_axlearn, save_axlearn_by_orbax])
def test_a_checkpoint_of_axlearn_is_read_bit_for_bit(tmp_path, fuses, save):
    equal_heads = {"num_key_value_heads": 4} if fuses == "three" else {}
    hf = published(tmp_path / "hf", **equal_heads)
    save(tmp_path / "own", axlearn(hf, fuses=fuses))
    assert "AXLearn's model" in convert(tmp_path)
    assert_same(tmp_path, hf)


def test_the_run_computes_what_axlearn_does(tmp_path):
    tree = axlearn(published(tmp_path / "hf"))
    save_axlearn(tmp_path / "own", tree)
    convert(tmp_path)
    np.testing.assert_allclose(logits(tmp_path), axlearn_logits(tree, TOKENS), 1e-4, 1e-4)


def test_a_plain_tree_of_a_flax_model_is_read(tmp_path):
    hf = published(tmp_path / "hf")
    save_flax(tmp_path / "own", hf)
    assert "Flax's model" in convert(tmp_path)
    assert_same(tmp_path, hf)


def test_the_newest_step_is_read_or_the_one_that_is_named(tmp_path):
    hf = published(tmp_path / "hf")
    tree = maxtext(hf)
    save_maxtext(tmp_path / "own" / "checkpoints", jax.tree.map(np.zeros_like, tree), step=9)
    save_maxtext(tmp_path / "own" / "checkpoints", tree, step=10)
    convert(tmp_path)
    assert_same(tmp_path, hf)
    config = str(tmp_path / "hf")
    run, _ = import_orbax(tmp_path / "own", tmp_path / "old", config=config, step=9)
    assert not any(leaf.any() for leaf in jax.tree.leaves(run.state))
    with pytest.raises(CheckpointError, match="no step 8; it has the steps 9, 10"):
        import_orbax(tmp_path / "own", tmp_path / "none", config=config, step=8)


def test_an_experiment_says_what_the_model_is(tmp_path):
    hf = published(tmp_path / "hf")
    save_maxtext(tmp_path / "own", scanned(maxtext(hf)))
    layer = {"attention": {"head_dim": H}, "feed_forward": {"hidden_dim": 48}}
    stack = {"num_layers": LAYERS, "layer": layer}
    model = {"dim": D, "decoder": {"stack": stack}}
    config = tmp_path / "own.yaml"
    config.write_text(json.dumps({"base": "tiny", "model": model}))
    run, _ = import_orbax(tmp_path / "own", tmp_path / "run", config=str(config))
    assert run.config.prompt == "def "
    assert_same(tmp_path, hf)


def test_training_is_ignored_with_one_warning(tmp_path):
    hf = published(tmp_path / "hf")
    save_maxtext(tmp_path / "own", maxtext(hf))
    with pytest.warns(UserWarning, match=r"^\d+ arrays .*, opt_state") as warned:
        convert(tmp_path)
    assert len([one for one in warned if "opt_state" in str(one.message)]) == 1


def test_the_dtype_is_the_stored_one_or_the_one_that_is_asked_for(tmp_path):
    hf = published(tmp_path / "hf")
    tree = jax.tree.map(lambda one: one.astype(jnp.bfloat16), maxtext(hf))
    save_maxtext(tmp_path / "own", tree)
    convert(tmp_path)
    assert {leaf.dtype for leaf in jax.tree.leaves(load_run(tmp_path / "run").state)} == {
        jnp.dtype("bfloat16")
    }
    tree["decoder"]["decoder_norm"]["scale"] = hf["model.norm.weight"]
    save_maxtext(tmp_path / "own", tree, step=8)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(CheckpointError, match="bfloat16, float32"):
        convert(tmp_path)
    convert(tmp_path, "--dtype", "float32")


def test_a_stack_of_layers_is_read_once(tmp_path):
    hf = published(tmp_path / "hf")
    save_maxtext(tmp_path / "own", scanned(maxtext(hf)))
    arrays = find_stored_arrays(tmp_path / "own")
    name = "params.params.decoder.layers.mlp.wo.kernel"
    first = arrays.read(name, axis=1, index=0)
    shutil.rmtree(tmp_path / "own")  # the other layers are in memory
    second = arrays.read(name, axis=1, index=1)
    for i, one in enumerate((first, second)):
        np.testing.assert_array_equal(one, hf[f"model.layers.{i}.mlp.down_proj.weight"].T)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "does not say what model"),
        (("--config", "nowhere"), "no experiment 'nowhere'"),
        (("--config", "own"), "the folder has no config.json"),
    ],
)
def test_what_the_model_is_must_be_said(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    save_maxtext(tmp_path / "own", maxtext(published(tmp_path / "hf")))
    with pytest.raises(ConfigError, match=message):
        call("convert", "orbax:own", "run", *options)
    assert not (tmp_path / "run").exists()


def changed(tree, change):
    change(tree["decoder"])
    return tree


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda decoder: decoder["layers_1"]["mlp"].pop("wi_0"),
            "1 arrays .*:\ndecoder.layers_1.mlp.wi_0.kernel is missing",
        ),
        (
            lambda decoder: decoder.update(decoder_norm={"scale": np.ones(D + 1, np.float32)}),
            r"decoder.decoder_norm.scale has shape \[33\]; the model's has \[32\]",
        ),
        (
            lambda decoder: decoder["layers_0"].update(moe={"gate": np.ones(3, np.float32)}),
            "decoder.layers_0.moe.gate is not of this model",
        ),
        (
            lambda decoder: decoder.pop("logits_dense"),
            "decoder.logits_dense.kernel is missing",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path, change, message):
    tree = maxtext(published(tmp_path / "hf"))
    save_maxtext(tmp_path / "own", changed(tree, change))
    with pytest.raises(CheckpointError, match=message):
        convert(tmp_path)
    assert not (tmp_path / "run").exists()


def test_the_config_of_another_model_is_refused_by_its_arrays(tmp_path):
    hf = published(tmp_path / "hf")
    save_maxtext(tmp_path / "own", scanned(maxtext(hf)))
    path = tmp_path / "hf" / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "num_hidden_layers": LAYERS + 1}))
    message = r"decoder.layers.mlp.wo.kernel has shape \[48, 3, 32\]; the model's has \[48, 4, 32\]"
    with pytest.raises(CheckpointError, match=message):
        convert(tmp_path)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    published(tmp_path / "hf")
    (tmp_path / "own").mkdir()
    with pytest.raises(CheckpointError, match="no checkpoint of orbax or AXLearn"):
        convert(tmp_path)
    (tmp_path / "own" / "_METADATA").write_text("{")
    with pytest.raises(CheckpointError, match="orbax cannot read _METADATA"):
        convert(tmp_path)


def test_a_tree_of_another_library_is_refused_with_its_names(tmp_path):
    published(tmp_path / "hf")
    with ocp.PyTreeCheckpointer() as saver:
        saver.save(tmp_path / "own", {"transformer": {"wte": np.ones(3, np.float32)}})
    with pytest.raises(CheckpointError, match=r"no layout .*\ntransformer\.wte"):
        convert(tmp_path)


def test_a_family_without_such_layouts_is_refused(tmp_path):
    save_maxtext(tmp_path / "own", maxtext(published(tmp_path / "llama")))
    published(tmp_path / "hf", "mixtral", num_local_experts=2)
    with pytest.raises(ConfigError, match="models of type mixtral are read from no other"):
        convert(tmp_path)


@pytest.mark.parametrize("trainer", ["flax", "axlearn"])
def test_a_lost_chunk_is_an_error_and_not_zeros(tmp_path, trainer):
    hf = published(tmp_path / "hf")
    if trainer == "flax":
        save_flax(tmp_path / "own", hf)
    else:
        save_axlearn(tmp_path / "own", axlearn(hf))
    for file in (tmp_path / "own").rglob("0.0*"):
        file.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        convert(tmp_path)
    assert not (tmp_path / "run").exists()


def test_options_of_orbax_are_refused_for_other_sources(tmp_path):
    published(tmp_path / "hf")
    with pytest.raises(ConfigError, match="--rotary-rows pairs is for orbax:FOLDER"):
        call("convert", f"hf:{tmp_path / 'hf'}", tmp_path / "run", "--rotary-rows", "pairs")
    save_axlearn(tmp_path / "own", axlearn(published(tmp_path / "other")))
    with pytest.raises(ConfigError, match="is for MaxText's checkpoints; this is AXLearn's"):
        convert(tmp_path, "--rotary-rows", "halves")
