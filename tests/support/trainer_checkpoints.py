"""Checkpoints as MaxText and AXLearn write them, of small models, and what these compute.

Written from Hugging Face's arrays by code that shares nothing with the layouts under test. Shapes:
D width of the model, N heads of queries, K of keys and values, H width of a head, F hidden width.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from safetensors.numpy import load_file

from axcore.interop import family_named, to_hugging_face

Arrays = Mapping[str, np.ndarray]
D, N, K, H, LAYERS = 32, 4, 2, 16, 3
"""H is 16, so that MaxText's factor of 1 / sqrt(H) loses no bit."""

_FIELDS = {
    "vocab_size": 264,
    "hidden_size": D,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": N,
    "num_key_value_heads": K,
    "head_dim": H,
    "intermediate_size": 48,
}


def published(folder: Path, kind: str = "llama", **fields: Any) -> Arrays:
    """Write a model of random weights for Hugging Face; return its arrays."""
    values = {"model_type": kind, **_FIELDS, **fields}
    if kind == "qwen2":  # whose heads have no width of their own
        values |= {"hidden_size": N * H}
        del values["head_dim"]
    cfg = family_named(kind).read(values)
    to_hugging_face(folder, cfg, _not_constant(cfg.build().init(0)), max_length=64)
    return load_file(folder / "model.safetensors")


def _not_constant(state: Any) -> Any:
    """Return a state whose scales and biases differ from place to place, so that order shows."""
    rng = np.random.default_rng(0)

    def noisy(leaf: Any) -> Any:
        drawn = rng.normal(size=leaf.shape).astype(leaf.dtype)
        return leaf + np.float32(0.1) * drawn

    return jax.tree.map(noisy, state)


def in_pairs(array: np.ndarray) -> np.ndarray:
    """Return an array with places `i` and `i + H / 2` of its last dimension next to each other."""
    first, second = np.split(array, 2, axis=-1)
    return np.stack([first, second], axis=-1).reshape(array.shape)


def _projections(hf: Arrays, layer: int, *, pairs: bool) -> dict[str, np.ndarray]:
    """Return queries', keys' and values' weights of a layer: [D, N, H], [D, K, H], [D, K, H]."""
    weights = (hf[f"model.layers.{layer}.self_attn.{one}_proj.weight"] for one in "qkv")
    q, k, v = (weight.T.reshape(weight.shape[1], -1, H) for weight in weights)
    return {"q": in_pairs(q), "k": in_pairs(k), "v": v} if pairs else {"q": q, "k": k, "v": v}


def maxtext(hf: Arrays, *, folds: bool = True, pairs: bool = False, fused: bool = False) -> Any:
    """Return MaxText's parameters, a layer each.

    Args:
        hf: Hugging Face's arrays.
        folds: Whether the queries' kernel contains 1 / sqrt(H).
        pairs: Whether positions rotate pairs.
        fused: Whether kernels are fused: `fused_qkv`, `fused_mlp`.
    """
    factor = np.float32(0.25) if folds else np.float32(1)

    def layer(i: int) -> Any:
        part = {
            name.removeprefix(f"model.layers.{i}."): array
            for name, array in hf.items()
            if name.startswith(f"model.layers.{i}.")
        }
        own = _projections(hf, i, pairs=pairs)
        own["q"] = own["q"] * factor
        gate, up = part["mlp.gate_proj.weight"].T, part["mlp.up_proj.weight"].T
        names = {"query": "q", "key": "k", "value": "v"}
        attention = {name: {"kernel": own[one]} for name, one in names.items()}
        mlp = {"wi_0": {"kernel": gate}, "wi_1": {"kernel": up}}
        for name, one in names.items():
            if (bias := part.get(f"self_attn.{one}_proj.bias")) is not None:
                bias = bias.reshape(-1, H)
                bias = in_pairs(bias) if pairs and one != "v" else bias
                attention[name]["bias"] = bias * factor if one == "q" else bias
            if (norm := part.get(f"self_attn.{one}_norm.weight")) is not None:
                attention[f"{name}_norm"] = {"scale": in_pairs(norm) if pairs else norm}
        if fused:
            attention = {"qkv_proj": {"kernel": np.concatenate([*own.values()], axis=1)}}
            mlp = {"wi": {"kernel": np.stack([gate, up], axis=1)}}
        output = part["self_attn.o_proj.weight"].T.reshape(N, H, -1)
        return {
            "pre_self_attention_layer_norm": {"scale": part["input_layernorm.weight"]},
            "post_self_attention_layer_norm": {"scale": part["post_attention_layernorm.weight"]},
            "self_attention": {**attention, "out": {"kernel": output}},
            "mlp": {**mlp, "wo": {"kernel": part["mlp.down_proj.weight"].T}},
        }

    decoder = {f"layers_{i}": layer(i) for i in range(LAYERS)}
    decoder["decoder_norm"] = {"scale": hf["model.norm.weight"]}
    if "lm_head.weight" in hf:
        decoder["logits_dense"] = {"kernel": hf["lm_head.weight"].T}
    return {
        "token_embedder": {"embedding": hf["model.embed_tokens.weight"]},
        "decoder": decoder,
    }


def scanned(tree: Any, axis: int = 1) -> Any:
    """Return MaxText's parameters with layers stacked in a dimension."""
    decoder = dict(tree["decoder"])
    layers = [decoder.pop(f"layers_{i}") for i in range(LAYERS)]
    decoder["layers"] = jax.tree.map(lambda *one: np.stack(one, axis=axis), *layers)
    return {**tree, "decoder": decoder}


def save_maxtext(folder: Path, tree: Any, *, step: int = 7) -> None:
    """Save a training state as MaxText's manager does: items, with the optimizer's arrays."""
    state = {
        "params": {"params": tree},
        "opt_state": {"mu": {"params": jax.tree.map(np.zeros_like, tree)}},
        "step": step,
    }
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True)
    with ocp.CheckpointManager(folder, item_handlers={"items": handler}) as manager:
        manager.save(step, args=ocp.args.Composite(items=ocp.args.PyTreeSave(state)))


def axlearn(hf: Arrays, *, fuses: str = "") -> Any:
    """Return AXLearn's parameters, with layers stacked below `repeat`.

    Args:
        hf: Hugging Face's arrays.
        fuses: `heads` if queries, keys and values are one weight [D, N + 2K, H]; `three` if they
            are [3, D, N, H].
    """

    def layer(i: int) -> Any:
        at = f"model.layers.{i}"
        own = _projections(hf, i, pairs=True)
        projections = {f"{one}_proj": {"weight": array} for one, array in own.items()}
        if fuses:
            join = np.concatenate if fuses == "heads" else np.stack
            axis = 1 if fuses == "heads" else 0
            projections = {"qkv_proj": {"weight": join([*own.values()], axis=axis)}}
        return {
            "self_attention": {
                "norm": {"scale": hf[f"{at}.input_layernorm.weight"]},
                "attention": {
                    "i_proj": {"i_proj": projections},
                    "o_proj": {"weight": hf[f"{at}.self_attn.o_proj.weight"].reshape(D, N, H)},
                },
            },
            "feed_forward": {
                "norm": {"scale": hf[f"{at}.post_attention_layernorm.weight"]},
                "linear1_0": {"weight": hf[f"{at}.mlp.gate_proj.weight"].T},
                "linear1_1": {"weight": hf[f"{at}.mlp.up_proj.weight"].T},
                "linear2": {"weight": hf[f"{at}.mlp.down_proj.weight"].T},
            },
        }

    stacked = jax.tree.map(lambda *one: np.stack(one), *(layer(i) for i in range(LAYERS)))
    decoder = {
        "emb": {"token_emb": {"weight": hf["model.embed_tokens.weight"]}},
        "transformer": {"repeat": {"layer": stacked}},
        "output_norm": {"scale": hf["model.norm.weight"]},
    }
    if "lm_head.weight" in hf:
        decoder["lm_head"] = {"weight": hf["lm_head.weight"]}
    return {"decoder": decoder}


def _axlearn_state(tree: Any) -> Any:
    return {
        "prng_key": np.zeros(4, np.uint32),
        "model": tree,
        "learner": {"ema": jax.tree.map(np.zeros_like, tree)},
    }


def save_axlearn(folder: Path, tree: Any, *, step: int = 7) -> None:
    """Save a trainer's state in AXLearn's own format: an index, and a zarr for each array."""
    target = folder / f"step_{step:08}"
    index: list[Any] = [["step", step]]
    for path, array in jax.tree_util.tree_leaves_with_path(_axlearn_state(tree)):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        index.append([name, {"dtype": str(array.dtype), "shape": str(array.shape)}])
        spec = {
            "driver": "zarr",
            "kvstore": {"driver": "file", "path": str(target / "gda" / name)},
            "metadata": {"shape": array.shape, "chunks": array.shape, "dtype": array.dtype.str},
        }
        tensorstore.open(spec, create=True, open=True).result().write(array).result()
    (target / "index").write_text(json.dumps(index))


def save_axlearn_by_orbax(folder: Path, tree: Any, *, step: int = 7) -> None:
    """Save a trainer's state as AXLearn's `OrbaxCheckpointer` does: an index, and the state."""
    options = ocp.CheckpointManagerOptions(
        step_name_format=ocp.step.standard_name_format(
            step_prefix="step", step_format_fixed_length=8
        )
    )
    handlers = {
        "index": ocp.JsonCheckpointHandler(filename="index"),
        "state": ocp.PyTreeCheckpointHandler(),
    }
    with ocp.CheckpointManager(folder, options=options, item_handlers=handlers) as manager:
        args = {
            "index": ocp.args.JsonSave([["step", step]]),
            "state": ocp.args.PyTreeSave(_axlearn_state(tree)),
        }
        manager.save(step, args=ocp.args.Composite(**args))


def save_flax(folder: Path, hf: Arrays) -> None:
    """Save the parameters of transformers' model in Flax, a file for each array."""
    tree: dict[str, Any] = {}
    for name, array in hf.items():
        *path, last = name.split(".")
        node = tree
        for one in path:
            node = node.setdefault(one, {})
        if last == "weight" and array.ndim == 2:
            node["embedding" if path[-1] == "embed_tokens" else "kernel"] = (
                array if path[-1] == "embed_tokens" else array.T
            )
        else:
            node[last] = array
    with ocp.PyTreeCheckpointer(use_ocdbt=False) as saver:
        saver.save(folder, {"params": tree})


def maxtext_logits(tree: Any, tokens: np.ndarray, *, pairs: bool) -> np.ndarray:
    """Return what MaxText's Llama computes: attention whose logits are not divided by sqrt(H)."""
    layers = []
    for i in range(LAYERS):
        layer = tree["decoder"][f"layers_{i}"]
        attention, mlp = layer["self_attention"], layer["mlp"]
        layers.append(
            {
                "norms": [
                    layer[f"{at}_self_attention_layer_norm"]["scale"] for at in ("pre", "post")
                ],
                "q_DNH": attention["query"]["kernel"],
                "k_DKH": attention["key"]["kernel"],
                "v_DKH": attention["value"]["kernel"],
                "o_NHD": attention["out"]["kernel"],
                "mlp": [mlp[name]["kernel"] for name in ("wi_0", "wi_1", "wo")],
            }
        )
    decoder = tree["decoder"]
    ends = (tree["token_embedder"]["embedding"], decoder["decoder_norm"]["scale"])
    return _logits(tokens, *ends, decoder["logits_dense"]["kernel"], layers, pairs=pairs, scale=1.0)


def axlearn_logits(tree: Any, tokens: np.ndarray) -> np.ndarray:
    """Return what AXLearn's Llama computes, with queries, keys and values in a weight each."""
    decoder = tree["decoder"]
    layers = []
    for i in range(LAYERS):
        layer = jax.tree.map(lambda one, i=i: one[i], decoder["transformer"]["repeat"]["layer"])
        attention, mlp = layer["self_attention"]["attention"], layer["feed_forward"]
        own = attention["i_proj"]["i_proj"]
        layers.append(
            {
                "norms": [layer["self_attention"]["norm"]["scale"], mlp["norm"]["scale"]],
                "q_DNH": own["q_proj"]["weight"],
                "k_DKH": own["k_proj"]["weight"],
                "v_DKH": own["v_proj"]["weight"],
                "o_NHD": np.einsum("dnh->nhd", attention["o_proj"]["weight"]),
                "mlp": [mlp[name]["weight"] for name in ("linear1_0", "linear1_1", "linear2")],
            }
        )
    ends = (decoder["emb"]["token_emb"]["weight"], decoder["output_norm"]["scale"])
    head = decoder["lm_head"]["weight"].T
    return _logits(tokens, *ends, head, layers, pairs=True, scale=H**-0.5)


def _logits(
    tokens: np.ndarray,
    embedding: np.ndarray,
    norm: np.ndarray,
    head: np.ndarray,
    layers: list[Any],
    *,
    pairs: bool,
    scale: float,
) -> np.ndarray:
    x_TD = embedding[tokens].astype(np.float64)
    mask = np.triu(np.full((len(tokens), len(tokens)), -np.inf), 1)
    for layer in layers:
        y_TD = _normalised(x_TD, layer["norms"][0])
        q, k, v = (
            np.einsum("td,dnh->nth", y_TD, layer[name]) for name in ("q_DNH", "k_DKH", "v_DKH")
        )
        k, v = (np.repeat(one, N // K, axis=0) for one in (k, v))
        q, k = (_rotated(one, pairs=pairs) for one in (q, k))
        attended = np.exp(np.einsum("nth,nsh->nts", q, k) * scale + mask)
        attended /= attended.sum(axis=-1, keepdims=True)
        x_TD = x_TD + np.einsum("nts,nsh,nhd->td", attended, v, layer["o_NHD"])
        gate, up, down = layer["mlp"]
        y_TD = _normalised(x_TD, layer["norms"][1])
        gated = y_TD @ gate
        x_TD = x_TD + (gated / (1 + np.exp(-gated)) * (y_TD @ up)) @ down
    return _normalised(x_TD, norm) @ head


def _normalised(x_TD: np.ndarray, scale_D: np.ndarray) -> np.ndarray:
    return x_TD / np.sqrt(np.mean(x_TD**2, axis=-1, keepdims=True) + 1e-6) * scale_D


def _rotated(x_NTH: np.ndarray, *, pairs: bool) -> np.ndarray:
    angles = np.arange(x_NTH.shape[1])[:, None] * 10_000.0 ** (-np.arange(0, H, 2) / H)
    sin, cos = np.sin(angles), np.cos(angles)
    if pairs:
        x, y = x_NTH[..., 0::2], x_NTH[..., 1::2]
        return np.stack([x * cos - y * sin, y * cos + x * sin], axis=-1).reshape(x_NTH.shape)
    x, y = np.split(x_NTH, 2, axis=-1)
    return np.concatenate([x * cos - y * sin, y * cos + x * sin], axis=-1)
