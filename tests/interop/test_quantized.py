"""Quantized folders are read as the folders of what their formats say that numbers mean."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state
from quantized_folders import FORMATS, quantize_folder, stored_as
from safetensors.numpy import load_file, save_file

from axcore.errors import CheckpointError
from axcore.interop import PretrainedCheckpoint, from_hugging_face, to_hugging_face
from axcore.interop.quantized import dequantized
from axcore.interop.tensor_files import find_tensors
from axcore.models import llama2, qwen2


def folder_of(cfg, path, dtype=None):
    state = jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))
    to_hugging_face(path, cfg, state, dtype=dtype)
    return path


def read(folder):
    with pytest.warns(UserWarning, match="are dequantized to float32"):
        return from_hugging_face(folder)


@pytest.mark.parametrize("name", FORMATS)
def test_a_weight_is_what_its_format_says(name, tmp_path):
    stored, means, settings = stored_as(name, (96, 128))
    save_file(
        {f"up.{part}": array for part, array in stored.items()}, tmp_path / "model.safetensors"
    )
    found = dequantized(find_tensors(tmp_path), settings)
    assert found.keys() == {"up.weight"}
    assert found["up.weight"].shape == means.shape
    np.testing.assert_array_equal(found["up.weight"].read(), means)


@pytest.mark.parametrize("name", ["gptq", "awq", "compressed-with-zeros", "modelopt", "nf4-nested"])
@pytest.mark.parametrize("make", [llama2, qwen2])
def test_a_folder_is_read_as_the_one_of_what_it_means(make, name, tmp_path):
    folder = folder_of(make("toy"), tmp_path / "model")
    quantize_folder(name, folder, tmp_path / "plain")
    found, expected = read(folder), from_hugging_face(tmp_path / "plain")
    assert found.config.decoder == expected.config.decoder
    jax.tree.map(np.testing.assert_array_equal, found.state, expected.state)


def test_modules_that_are_left_out_stay_as_they_are(tmp_path):
    stored, _, settings = stored_as("fbgemm", (32, 64))
    head = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    tensors = {**{f"up.{part}": one for part, one in stored.items()}, "lm_head.weight": head}
    save_file(tensors, tmp_path / "model.safetensors")
    found = dequantized(find_tensors(tmp_path), settings)
    np.testing.assert_array_equal(found["lm_head.weight"].read(), head)


def test_it_becomes_the_dtype_that_the_config_names(tmp_path):
    folder = folder_of(llama2("toy"), tmp_path / "model")
    quantize_folder("gptq", folder, tmp_path / "plain")
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "torch_dtype": "bfloat16"}))
    with pytest.warns(UserWarning, match=r"quantized \(GPTQ\); they are dequantized to bfloat16"):
        found = from_hugging_face(folder)
    expected = from_hugging_face(tmp_path / "plain", dtype="bfloat16")
    jax.tree.map(np.testing.assert_array_equal, found.state, expected.state)


def test_without_a_name_it_becomes_the_dtype_of_what_is_not_quantized(tmp_path):
    folder = folder_of(llama2("toy"), tmp_path / "model", dtype="bfloat16")
    quantize_folder("gptq", folder, tmp_path / "plain")
    content = json.loads((folder / "config.json").read_text())
    del content["torch_dtype"]
    (folder / "config.json").write_text(json.dumps(content))
    assert PretrainedCheckpoint(folder).dtype == "bfloat16"


def test_biases_of_zeros_that_a_model_lacks_are_passed_over(tmp_path):
    folder = folder_of(llama2("toy"), tmp_path / "model")
    quantize_folder("gptq", folder, tmp_path / "plain")
    file, name = folder / "model.safetensors", "model.layers.0.mlp.up_proj.bias"
    tensors = {**load_file(file), name: np.zeros(96, np.float16)}
    save_file(tensors, file)
    read(folder)
    save_file({**tensors, name: np.ones(96, np.float16)}, file)
    with pytest.raises(CheckpointError, match=r"up_proj\.bias is not of this model"):
        read(folder)


@pytest.mark.parametrize(
    ("file", "name"), [("config.json", "compression_config"), ("hf_quant_config.json", "modelopt")]
)
def test_settings_are_read_where_older_files_have_them(file, name, tmp_path):
    kind = "compressed-ints" if file == "config.json" else "modelopt"
    folder = folder_of(llama2("toy"), tmp_path / "model")
    quantize_folder(kind, folder, tmp_path / "plain")
    content = json.loads((folder / "config.json").read_text())
    settings = content.pop("quantization_config")
    if file == "config.json":
        content[name] = settings
    else:
        (folder / file).write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    (folder / "config.json").write_text(json.dumps(content))
    jax.tree.map(
        np.testing.assert_array_equal,
        read(folder).state,
        from_hugging_face(tmp_path / "plain").state,
    )


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("gptq", {"bits": 3}, "GPTQ in 3 bits"),
        ("gptq", {"checkpoint_format": "marlin"}, "in the form 'marlin'"),
        ("awq", {"version": "gemv"}, "in the version 'gemv'"),
        ("compressed-ints", {"format": "marlin-24"}, "the format marlin-24"),
        ("compressed-ints", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24-bit"),
        ("compressed-ints", {"config_groups": {}}, "no group of quantization_config says"),
        ("modelopt", {"quant_algo": "W4A8_AWQ"}, "ModelOpt quantized the weights by W4A8_AWQ"),
        *(("gptq", {"quant_method": one}, f"quantized by '{one}'") for one in ("spqr", "hqq")),
    ],
)
def test_schemes_that_are_not_read_are_refused_by_name(name, changes, words, tmp_path):
    stored, _, settings = stored_as(name, (32, 64))
    save_file({f"up.{part}": one for part, one in stored.items()}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=words) as error:
        dequantized(find_tensors(tmp_path), {**settings, **changes})
    assert "hint: " in str(error.value)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gptq", {"group_size": "128"}),
        ("gptq", {"group_size": 0}),
        ("compressed-ints", {"config_groups": [1]}),
        ("compressed-ints", {"sparsity_config": "none"}),
        ("float8", {"weight_block_size": 128}),
    ],
)
def test_settings_of_other_types_are_errors(name, changes, tmp_path):
    stored, _, settings = stored_as(name, (32, 64))
    save_file({f"up.{part}": one for part, one in stored.items()}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError) as error:
        dequantized(find_tensors(tmp_path), {**settings, **changes})
    assert "hint: " in str(error.value)


@pytest.mark.parametrize("name", FORMATS)
def test_files_that_lack_a_part_are_errors(name, tmp_path):
    stored, _, settings = stored_as(name, (32, 64))
    optional = ("g_idx", "input_scale", "weight_format", "weight_g_idx")
    parts = [part for part in stored if not part.endswith(optional)]
    if "symmetric" not in str(settings) and "weight_zero_point" in parts:
        parts.remove("weight_zero_point")
    for part in parts if name != "compressed-int8-with-zeros" else parts[:2]:
        rest = {f"up.{one}": array for one, array in stored.items() if one != part}
        save_file(rest, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError) as error:
            _check_reads(find_tensors(tmp_path), settings)
        assert "up" in str(error.value), part
        assert "hint: " in str(error.value), part


def _check_reads(tensors, settings):
    """Reads tensors, and checks what a model does: that they are its own, by name."""
    found = dequantized(tensors, settings)
    strange = sorted(found.keys() - {"up.weight"})
    if strange or found["up.weight"].dtype != np.float32:
        raise CheckpointError(f"{strange or 'up.weight'} is not of this model", hint="fetch again")


@pytest.mark.parametrize("name", FORMATS)
def test_parts_of_other_shapes_are_errors(name, tmp_path):
    stored, _, settings = stored_as(name, (32, 64))
    settings = json.loads(json.dumps(settings).replace(str(1 << 20), "64"))
    for part in ("scales", "weight_scale", "SCB", "weight.absmax"):
        if part not in stored:
            continue
        wrong = np.ones((3, 5), stored[part].dtype)
        rest = {f"up.{one}": array for one, array in {**stored, part: wrong}.items()}
        save_file(rest, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=r"of shape \[3, 5\]"):
            dequantized(find_tensors(tmp_path), settings)


def test_groups_that_are_not_there_are_an_error(tmp_path):
    stored, _, settings = stored_as("gptq-ordered-by-activations", (32, 64))
    stored["g_idx"][3] = -1
    save_file({f"up.{part}": one for part, one in stored.items()}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"up\.g_idx has groups from -1 to 1"):
        dequantized(find_tensors(tmp_path), settings)


def test_a_blob_that_is_damaged_is_an_error(tmp_path):
    stored, _, settings = stored_as("nf4", (32, 64))
    stored["weight.quant_state.bitsandbytes__nf4"] = np.frombuffer(b'{"shape": [1,', np.uint8)
    save_file({f"up.{part}": one for part, one in stored.items()}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"quant_state of up\.weight is damaged"):
        dequantized(find_tensors(tmp_path), settings)


def test_a_folder_that_lacks_a_scale_names_it(tmp_path):
    folder = folder_of(llama2("toy"), tmp_path / "model")
    quantize_folder("awq", folder, tmp_path / "plain")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.scales"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"no model\.layers\.1\.mlp\.up_proj\.scales"):
        from_hugging_face(folder)
