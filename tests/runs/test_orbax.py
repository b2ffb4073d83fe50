"""`axcore convert orbax:...`: runs of MaxText's and AXLearn's checkpoints.

Checkpoints are written here by orbax or tensorstore, from Hugging Face's arrays of small models, by
code that shares nothing with the layouts under test.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore
from click.testing import CliRunner
from safetensors.numpy import load_file

from axcore.cli.main import group
from axcore.errors import AxcoreError, CheckpointError, ConfigError
from axcore.interop import family_named, to_hugging_face
from axcore.runs import load_run

HEADS, KV_HEADS, WIDTH, DIM, LAYERS = 4, 2, 16, 32, 3
"""A head of 16, so that MaxText's factor of 1 / sqrt(16) loses no bit."""

FIELDS = {
    "vocab_size": 264,
    "hidden_size": DIM,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": WIDTH,
    "intermediate_size": 48,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def call(*arguments):
    result = CliRunner().invoke(group, [str(one) for one in arguments])
    if isinstance(result.exception, AxcoreError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def published(folder, kind="llama", **fields):
    """Writes a model of random weights for Hugging Face; returns its arrays."""
    cfg = family_named(kind).read({"model_type": kind, **FIELDS, **fields})
    to_hugging_face(folder, cfg, cfg.build().init(0), max_length=64)
    return load_file(folder / "model.safetensors")


def in_pairs(array):
    """Puts rows of the first and second half of the last dimension next to each other."""
    first, second = np.split(array, 2, axis=-1)
    return np.stack([first, second], axis=-1).reshape(array.shape)


def maxtext(hf, *, folds=True, pairs=False):
    """Returns the tree of MaxText's parameters, a layer each."""
    order = in_pairs if pairs else lambda array: array
    factor = np.float32(1 / np.sqrt(WIDTH)) if folds else np.float32(1)

    def heads(name, count):
        return hf[name].T.reshape(DIM, count, WIDTH)

    def layer(i):
        at = f"model.layers.{i}"
        attention = {
            "query": {"kernel": order(heads(f"{at}.self_attn.q_proj.weight", HEADS)) * factor},
            "key": {"kernel": order(heads(f"{at}.self_attn.k_proj.weight", KV_HEADS))},
            "value": {"kernel": heads(f"{at}.self_attn.v_proj.weight", KV_HEADS)},
            "out": {"kernel": hf[f"{at}.self_attn.o_proj.weight"].T.reshape(HEADS, WIDTH, DIM)},
        }
        for own, theirs, count in (("query", "q", HEADS), ("key", "k", 2), ("value", "v", 2)):
            if (bias := hf.get(f"{at}.self_attn.{theirs}_proj.bias")) is not None:
                attention[own]["bias"] = bias.reshape(count, WIDTH)
            if (norm := hf.get(f"{at}.self_attn.{theirs}_norm.weight")) is not None:
                attention[f"{own}_norm"] = {"scale": norm}
        return {
            "pre_self_attention_layer_norm": {"scale": hf[f"{at}.input_layernorm.weight"]},
            "post_self_attention_layer_norm": {
                "scale": hf[f"{at}.post_attention_layernorm.weight"]
            },
            "self_attention": attention,
            "mlp": {
                "wi_0": {"kernel": hf[f"{at}.mlp.gate_proj.weight"].T},
                "wi_1": {"kernel": hf[f"{at}.mlp.up_proj.weight"].T},
                "wo": {"kernel": hf[f"{at}.mlp.down_proj.weight"].T},
            },
        }

    tree = {
        "token_embedder": {"embedding": hf["model.embed_tokens.weight"]},
        "decoder": {
            **{f"layers_{i}": layer(i) for i in range(LAYERS)},
            "decoder_norm": {"scale": hf["model.norm.weight"]},
        },
    }
    if "lm_head.weight" in hf:
        tree["decoder"]["logits_dense"] = {"kernel": hf["lm_head.weight"].T}
    return tree


def scanned(tree, axis=1):
    """Returns a tree of MaxText's with its layers stacked."""
    decoder = dict(tree["decoder"])
    layers = [decoder.pop(f"layers_{i}") for i in range(LAYERS)]
    decoder["layers"] = jax.tree.map(lambda *one: np.stack(one, axis=axis), *layers)
    return {**tree, "decoder": decoder}


def save_maxtext(folder, tree, *, step=7):
    """Saves a training state as MaxText's manager does: items, with the optimizer's arrays."""
    state = {
        "params": {"params": jax.tree.map(jnp.asarray, tree)},
        "opt_state": {"mu": {"params": jax.tree.map(jnp.zeros_like, tree)}},
        "step": step,
    }
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True)
    with ocp.CheckpointManager(folder, item_handlers={"items": handler}) as manager:
        manager.save(step, args=ocp.args.Composite(items=ocp.args.PyTreeSave(state)))


def assert_same(run, folder, hf):
    """Exports a run, and compares every array with the model's, bit by bit."""
    call("convert", run, f"hf:{folder}")
    found = load_file(folder / "model.safetensors")
    assert found.keys() == hf.keys()
    for name, array in hf.items():
        assert found[name].tobytes() == array.tobytes(), name


@pytest.mark.filterwarnings("ignore:.*arrays of the checkpoint are not the model's")
def test_a_scanned_checkpoint_of_maxtext_is_read_bit_for_bit(tmp_path):
    hf = published(tmp_path / "hf")
    save_maxtext(tmp_path / "maxtext", scanned(maxtext(hf)))
    told = call(
        "convert", f"orbax:{tmp_path / 'maxtext'}", tmp_path / "run", "--config", tmp_path / "hf"
    )
    assert "MaxText's model" in told
    assert_same(tmp_path / "run", tmp_path / "back", hf)
