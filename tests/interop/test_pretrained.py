"""Pretrained checkpoints: read bit by bit, and refused by name where something is wrong."""

import cProfile
import json
import pstats
from pathlib import Path

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state
from safetensors.numpy import load_file, save_file

from axcore.config import update_config
from axcore.errors import AxcoreError, CheckpointError, ConfigError
from axcore.interop import (
    HuggingFace,
    PretrainedCheckpoint,
    family_named,
    from_hugging_face,
    host_arrays,
    to_hugging_face,
)
from axcore.interop.checkpoint_arrays import checkpoint_arrays
from axcore.layers import RMSNorm
from axcore.models import llama2, mixtral, qwen2
from axcore.models.causal_lm import TiedHead
from axcore.runs import import_run

CFG = qwen2("toy")
K = "model.layers.1.self_attn.k_proj.weight"


@pytest.fixture(scope="module")
def state():
    return jax.tree.map(jnp.asarray, numpy_state(CFG.build().param_specs()))


@pytest.fixture
def folder(state, tmp_path):
    assert to_hugging_face(tmp_path / "model", CFG, state) == "qwen2"
    return tmp_path / "model"


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def rewritten(folder, change):
    """Changes the tensors of a folder, in the file that it has them in."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def test_what_is_written_is_read_again_bit_by_bit(folder, state):
    read = from_hugging_face(folder)
    assert bits(read.state) == bits(state)
    assert jax.tree.structure(read.state) == jax.tree.structure(state)


def test_a_model_is_built_once_to_be_read(folder):
    profile = cProfile.Profile()
    profile.runcall(from_hugging_face, folder)
    calls = {
        Path(file).name: count
        for (file, _, name), (count, *_) in pstats.Stats(profile).stats.items()
        if name == "setup"
    }
    assert calls["causal_lm.py"] == 1


def test_reading_a_small_model_takes_few_calls(folder):
    from_hugging_face(folder)  # imports, and compiles what checks values
    profile = cProfile.Profile()
    profile.runcall(from_hugging_face, folder)
    assert pstats.Stats(profile).total_calls < 160_000  # it takes 110,000, and took 219,000


def test_the_library_of_the_format_reads_what_is_written(folder, state):
    tensors = load_file(folder / "model.safetensors")
    axcore = np.asarray(state["decoder"]["stack"]["layer"]["attention"]["k"]["weight"][1])
    assert np.array_equal(tensors[K], axcore.T)
    assert "lm_head.weight" in tensors


def test_weights_that_the_host_cannot_hold_are_refused_before_they_are_read(
    folder, state, tmp_path, monkeypatch
):
    num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    monkeypatch.setattr(host_arrays, "host_bytes", lambda: num_bytes)
    from_hugging_face(folder)
    monkeypatch.setattr(host_arrays, "host_bytes", lambda: num_bytes - 1)
    rewritten(folder, lambda tensors: tensors[K].fill(np.nan))  # reading would find it
    with pytest.raises(CheckpointError, match=r"need .* of the host's memory \(.* as float32\)"):
        import_run(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("cfg", [llama2("toy"), mixtral("toy")], ids=["llama", "mixtral"])
def test_a_model_in_many_files_is_the_same(cfg, tmp_path):
    state = jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))
    to_hugging_face(tmp_path / "many", cfg, state, max_shard_bytes=50_000)
    files = sorted(tmp_path.glob("many/*.safetensors"))
    assert len(files) > 5
    assert files[0].name == f"model-00001-of-{len(files):05}.safetensors"
    whole = {name: array for file in files for name, array in load_file(file).items()}
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == whole.keys()
    assert index["metadata"]["total_size"] == sum(one.nbytes for one in whole.values())
    assert bits(from_hugging_face(tmp_path / "many").state) == bits(state)


def test_bfloat16_is_kept_unless_another_dtype_is_asked_for(state, tmp_path):
    to_hugging_face(tmp_path / "narrow", CFG, state, dtype="bfloat16")
    narrow = from_hugging_face(tmp_path / "narrow")
    assert narrow.config.dtypes.param == "bfloat16"
    assert bits(narrow.state) == bits(
        jax.tree.map(lambda x: np.asarray(x).astype(jnp.bfloat16), state)
    )
    wide = from_hugging_face(tmp_path / "narrow", dtype="float32").state
    assert bits(wide) == bits(
        jax.tree.map(lambda x: np.asarray(x).astype(np.float32), narrow.state)
    )
    to_hugging_face(tmp_path / "again", CFG, narrow.state)
    first, second = (tmp_path / name / "model.safetensors" for name in ("narrow", "again"))
    assert first.read_bytes() == second.read_bytes()


def test_arrays_are_sharded_from_the_start(folder, state):
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    split = {2: PartitionSpec("x", "y"), 3: PartitionSpec("y", "x", None)}
    published = PretrainedCheckpoint(folder)

    def wanted(leaf):
        spec = split.get(leaf.ndim, PartitionSpec())
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    read = published.read(published.config, jax.tree.map(wanted, state))
    assert bits(read) == bits(state)
    queries = read["decoder"]["stack"]["layer"]["attention"]["q"]["weight"]
    assert {shard.data.shape for shard in queries.addressable_shards} == {(1, 32, 64)}


def test_every_tensor_that_does_not_fit_is_named(folder):
    def change(tensors):
        del tensors[K]
        tensors["model.norm.weight"] = np.ones(65, np.float32)
        tensors["visual.weight"] = np.ones(3, np.float32)

    rewritten(folder, change)
    with pytest.raises(CheckpointError, match="3 tensors do not fit") as caught:
        from_hugging_face(folder)
    for line in (
        f"{K} is missing",
        "model.norm.weight has shape [65]; the model's has [64]",
        "visual.weight is not of this model",
    ):
        assert line in str(caught.value)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_tensor_with_what_is_no_number_is_named(folder, bad):
    def change(tensors):
        tensors[K] = tensors[K].copy()
        tensors[K][3, 5] = bad

    rewritten(folder, change)
    with pytest.raises(CheckpointError, match=rf"1 tensors contain numbers that are.*\n{K}"):
        from_hugging_face(folder)


@pytest.mark.parametrize("num_bytes", [4, 100, -1])
def test_a_truncated_file_is_an_error(folder, num_bytes):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:num_bytes])
    with pytest.raises(CheckpointError, match="cannot be read: "):
        from_hugging_face(folder)


def test_a_tensor_in_two_files_and_one_in_the_wrong_file_are_named(state, tmp_path):
    folder = tmp_path / "many"
    to_hugging_face(folder, CFG, state, max_shard_bytes=100_000)
    first, second = sorted(folder.glob("*.safetensors"))[:2]
    doubled = next(iter(load_file(first)))
    moved, *_ = load_file(second)
    save_file({**load_file(second), doubled: np.ones(2, np.float32)}, second)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"][moved] = first.name
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError) as caught:
        from_hugging_face(folder)
    assert f"{doubled} is in {first.name} and {second.name}" in str(caught.value)
    assert f"{moved} is not in {first.name}" in str(caught.value)


def test_a_missing_file_is_named(state, tmp_path):
    folder = tmp_path / "many"
    to_hugging_face(folder, CFG, state, max_shard_bytes=100_000)
    lost = sorted(folder.glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(CheckpointError, match=f"{lost.name} cannot be read"):
        from_hugging_face(folder)


def test_another_model_is_an_error_that_shows_how_it_differs(folder):
    published = PretrainedCheckpoint(folder)
    with pytest.raises(ConfigError, match=r"\+ decoder.stack.num_layers: 3|dim"):
        published.read(llama2("7b"), None)


def test_nothing_is_written_over_and_nothing_is_left_of_what_failed(folder, state, tmp_path):
    with pytest.raises(CheckpointError, match="the folder is not empty"):
        to_hugging_face(folder, CFG, state)
    with pytest.raises(ConfigError, match="no family"):
        to_hugging_face(tmp_path / "new", RMSNorm.Config(), state)
    assert not (tmp_path / "new").exists()


def test_a_folder_without_a_model_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        from_hugging_face(tmp_path)


def test_a_damaged_config_is_an_error(folder):
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json.* is not JSON"):
        from_hugging_face(folder)


@pytest.mark.parametrize(
    "name", ["LlamaForTokenClassification", "Qwen2ForRewardModel", "GPT2DoubleHeadsModel"]
)
def test_a_model_with_a_head_that_is_not_over_tokens_is_refused_as_what_it_is(folder, name):
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "architectures": [name]}))
    with pytest.raises(ConfigError, match=f"{name}, which is not a language model"):
        PretrainedCheckpoint(folder)


def test_a_base_model_without_a_head_is_refused_unless_its_head_begins_at_random(folder, state):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["lm_head.weight"]
    for base in (tensors, {n.removeprefix("model."): one for n, one in tensors.items()}):
        save_file(base, file)  # as LlamaModel saves it, and as Llama without its head
        with pytest.raises(CheckpointError, match=r"base model without a head: lm_head") as caught:
            from_hugging_face(folder)
        assert "fresh=('head.**',)" in str(caught.value)
    plan = HuggingFace.Config(path=str(folder), fresh=("head.**",)).build().plan(CFG)
    read = plan.read(jax.eval_shape(lambda: CFG.build().init(0)))
    assert bits(read["decoder"]) == bits(state["decoder"])
    assert plan.table().splitlines()[-1].split(maxsplit=1) == [
        "head.weight",
        "randomly initialized",
    ]


@pytest.mark.parametrize(
    "name",
    ["config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"]
    + ["tokenizer.model"],
)
def test_a_file_that_git_lfs_has_not_fetched_is_refused_as_that(folder, name):
    if name.endswith("index.json"):
        (folder / "model.safetensors").unlink()
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 13\n"
    (folder / name).write_text(pointer)
    with pytest.raises(AxcoreError, match=f"{name} is a pointer of Git LFS") as caught:
        import_run(folder, folder.parent / "run")
    assert "lfs pull" in str(caught.value)


def test_the_dtype_that_a_config_names_is_that_of_most_numbers(state, tmp_path):
    mixed = jax.tree.map(lambda leaf: leaf.astype("bfloat16") if leaf.ndim > 2 else leaf, state)
    to_hugging_face(tmp_path / "mixed", CFG, mixed)
    content = json.loads((tmp_path / "mixed" / "config.json").read_text())
    assert content["torch_dtype"] == "bfloat16"


EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture
def tied(tmp_path):
    """A folder whose head is its embedding, which the file contains once more."""
    cfg = update_config(CFG, {"head": TiedHead.Config()})
    state = jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))
    to_hugging_face(tmp_path / "tied", cfg, state)
    rewritten(tmp_path / "tied", with_head)
    return tmp_path / "tied"


def with_head(tensors):
    tensors["lm_head.weight"] = tensors[EMBEDDING].copy()


def test_a_head_that_repeats_the_embedding_is_read_as_tied(tied):
    assert "head" not in from_hugging_face(tied).state


def test_a_head_of_its_own_is_not_passed_over(tied):
    rewritten(tied, lambda tensors: tensors["lm_head.weight"].__setitem__((0, 0), 9.0))
    with pytest.raises(CheckpointError, match=f"lm_head.weight is not {EMBEDDING}"):
        from_hugging_face(tied)


def test_buffers_that_hold_no_weights_have_no_say_in_the_dtype(state, tmp_path):
    to_hugging_face(tmp_path / "narrow", CFG, state, dtype="float16")
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    rewritten(tmp_path / "narrow", lambda tensors: tensors.update(buffer))
    assert from_hugging_face(tmp_path / "narrow").config.dtypes.param == "float16"


def test_numbers_that_a_narrow_dtype_cannot_hold_are_named(folder, tmp_path):
    name = "model.norm.weight"
    rewritten(folder, lambda tensors: tensors[name].__setitem__(0, 1e6))
    with pytest.raises(CheckpointError, match=rf"(?s)become so in the dtype.*{name}"):
        from_hugging_face(folder, dtype="float16")
    read = from_hugging_face(folder)
    with pytest.raises(CheckpointError, match=f"{name} contains numbers .* in float16"):
        to_hugging_face(tmp_path / "half", read.config, read.state, dtype="float16")
    assert list(tmp_path.glob("half*")) == []


def test_an_index_reaches_no_file_outside_its_folder(state, tmp_path):
    to_hugging_face(tmp_path / "many", CFG, state, max_shard_bytes=50_000)
    index = tmp_path / "many" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {K: "../other.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"'\.\./other\.safetensors', which is not a file of"):
        from_hugging_face(tmp_path / "many")


def test_what_is_passed_over_is_read_where_the_model_has_it(folder):
    """The layer behind the last one of a small model is one of many of a large model."""
    rewritten(folder, lambda tensors: tensors.update({"model.layers.2.extra": tensors[K]}))
    family = attrs.evolve(family_named("qwen2"), skipped=(r"^model\.layers\.(1|2)\.",))
    tensors = checkpoint_arrays(folder, family, CFG, {}).tensors
    assert tensors.keys() == family.bind(CFG).shapes.keys()
    assert K in tensors
