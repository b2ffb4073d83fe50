"""`Layout`: how another trainer names and shapes the arrays of a family's models.

A layout is a weight map from Hugging Face's arrays to the other trainer's, so that a checkpoint is
read as if it were a folder of Hugging Face's: `tensors_in_layout`. Letters of shapes: L layers, D
width of the model, N heads of queries, K heads of keys and values, H width of a head, F hidden
width, V tokens.
"""

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
import numpy as np

from axcore.errors import CheckpointError, ConfigError
from axcore.interop.config_map import Json
from axcore.interop.decoder_maps import PLAIN
from axcore.interop.gguf_map import head_width
from axcore.interop.stored_arrays import StoredArrays
from axcore.interop.weight_map import (
    Arrays,
    Chain,
    Concatenate,
    Rule,
    Same,
    Shape,
    SplitAxis,
    StackArrays,
    Transform,
    Transpose,
    WeightMap,
    below,
    interleaved,
    listed,
    same,
    shapes_after,
)

RotaryRows = Literal["halves", "pairs"]
"""Which rows of a head a position rotates together: `i` and `i + H / 2`, or `2i` and `2i + 1`."""

_LAYER = "model.layers.{layer}"
_NUMBERED = re.compile(r"^model\.layers\.(\d+)\.")
_TRAINING = re.compile(r"(^|\.)(\w*opt_state|optimizer|learner|ema)\.")
_RANDOM = re.compile(r"(^|\.)(\w*rngs|rng)\.")
"""Names of what only training needs, and of random keys that modules of Flax keep."""


@attrs.frozen
class Divide(Transform):
    """Divides numbers, which are float32 meanwhile; exact where the divisor is a power of two.

    Args:
        divisor: By what.
        is_undone: Whether it multiplies instead.
    """

    divisor: float
    is_undone: bool = False

    def __call__(self, arrays: Arrays) -> Arrays:
        """Return the quotients, or the products."""
        by, change = np.float32(self.divisor), operator.mul if self.is_undone else operator.truediv
        return tuple(change(array.astype(np.float32), by).astype(array.dtype) for array in arrays)

    @property
    def inverse(self) -> Transform:
        """Undo it."""
        return attrs.evolve(self, is_undone=not self.is_undone)


@attrs.frozen
class Each(Transform):
    """Changes every array by a transform of its own, which makes one array of one."""

    parts: tuple[Transform, ...]

    def __call__(self, arrays: Arrays) -> Arrays:
        """Return the changed arrays."""
        pairs = zip(self.parts, arrays, strict=True)
        return tuple(one for part, array in pairs for one in part((array,)))

    @property
    def inverse(self) -> Transform:
        """Undo every one."""
        return Each(tuple(part.inverse for part in self.parts))


@attrs.frozen
class Described:
    """What a layout's rules depend on.

    Args:
        values: The fields of the model's `config.json`.
        names: The names of its arrays in Hugging Face's files.
        rotary_rows: Which rows positions rotate together, where that is said.
    """

    values: Json
    names: tuple[str, ...]
    rotary_rows: RotaryRows | None = None

    @property
    def num_heads(self) -> int:
        """Heads of queries."""
        return int(self.values["num_attention_heads"])

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys and values."""
        return int(self.values["num_key_value_heads"])

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return head_width(self.values)


@attrs.frozen(kw_only=True)
class Layout:
    """How a trainer names and shapes the arrays of a family's models.

    Args:
        name: The trainer's.
        root: An array that all of its models have; what is before it in a name is left out.
        rules: From Hugging Face's names, each with as many arrays of a layer, to one of its own.
            Of several rules for the same names, the first is used that fits the checkpoint.
        layer: The path of a layer, with its number.
        stack: The path of all layers, where they are stacked.
        axes: The dimensions that layers may be stacked in, the usual one first.
        chooses_rows: Whether its models rotate halves or pairs.
    """

    name: str
    root: str
    rules: Callable[[Described], WeightMap]
    layer: str = ""
    stack: str = ""
    axes: tuple[int, ...] = (0,)
    chooses_rows: bool = False


@attrs.frozen(eq=False)
class _LayoutTensor:
    """An array of Hugging Face's, made of one of a checkpoint in another layout when it is read.

    Args:
        arrays: The checkpoint's.
        name: Of the one that it is made of.
        axis: The dimension in which layers are stacked in that.
        layer: The place in it.
        transform: From Hugging Face's arrays to that one.
        place: Which of these it is.
        shape: Its shape.
    """

    arrays: StoredArrays
    name: str
    axis: int | None
    layer: int
    transform: Transform
    place: int
    shape: Shape

    @property
    def file(self) -> Path:
        """The folder, and the name of the array in it."""
        return self.arrays.folder / self.name

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its numbers."""
        return self.arrays.arrays[self.name].dtype

    def read(self) -> np.ndarray:
        """Return it."""
        found = self.arrays.read(self.name, axis=self.axis, index=self.layer)
        return np.asarray(self.transform.inverse((found,))[self.place])


def tensors_in_layout(
    layouts: tuple[Layout, ...],
    arrays: StoredArrays,
    values: Json,
    shapes: Mapping[str, Shape],
    *,
    rotary_rows: RotaryRows | None = None,
) -> tuple[dict[str, _LayoutTensor], Layout]:
    """Return Hugging Face's arrays of a model by name, as a checkpoint has them, and its layout.

    Args:
        layouts: Those that the model's family is read in.
        arrays: The checkpoint's.
        values: The fields of the model's `config.json`.
        shapes: The shapes of Hugging Face's arrays.
        rotary_rows: Which rows positions rotate together, where the layout leaves that open.

    Raises:
        CheckpointError: It is in none of the layouts, or naming all arrays that are missing, of
            another shape or not the model's.
        ConfigError: The layout leaves open which rows are rotated, or says it.
    """
    layout, prefix = _found_layout(layouts, arrays)
    if rotary_rows is not None and not layout.chooses_rows:
        raise ConfigError(
            f"--rotary-rows {rotary_rows} is for MaxText's checkpoints; this is {layout.name}'s",
            where="--rotary-rows",
            hint="leave it out",
        )
    found = {
        name.removeprefix(prefix).removesuffix(".value"): name
        for name in arrays.arrays
        if name.startswith(prefix) and not _RANDOM.search(name.removeprefix(prefix))
    }
    rules = layout.rules(Described(values, tuple(shapes), rotary_rows))
    is_stacked = bool(layout.stack) and any(n.startswith(f"{layout.stack}.") for n in found)
    binding = _Binding(layout, rules, arrays, found, shapes)
    tried = [binding.bound(axis) for axis in (layout.axes if is_stacked else (None,))]
    # All arrays have the layers in one dimension. In a model that is as wide as it is deep several
    # may fit, and then the usual one, which is first, is right.
    tensors, problems = next((one for one in tried if not one[1]), tried[0])
    if problems:
        raise CheckpointError(
            f"{len(problems)} arrays of {layout.name}'s checkpoint do not fit the model of the "
            "config:\n" + listed(problems),
            where=str(arrays.folder),
            hint="name the checkpoint's own model: --config FOLDER or --config EXPERIMENT",
        )
    return tensors, layout


def _found_layout(layouts: tuple[Layout, ...], arrays: StoredArrays) -> tuple[Layout, str]:
    """Return the layout that a checkpoint is in, and what is before all names of the model's."""
    for layout in layouts:
        named = re.compile(rf"((?:.+\.)?){re.escape(layout.root)}(\.value)?")
        matches = [found for name in arrays.arrays if (found := named.fullmatch(name))]
        prefixes = [match[1] for match in matches if not _TRAINING.search(match[1])]
        if len(prefixes) > 1:
            raise CheckpointError(
                f"the checkpoint has {len(prefixes)} models, below {', '.join(prefixes)}",
                where=str(arrays.folder),
                hint="name the folder of a checkpoint with one",
            )
        if prefixes:
            return layout, prefixes[0]
    roots = ", ".join(f"{one.root} ({one.name})" for one in layouts)
    raise CheckpointError(
        "the checkpoint is in no layout that models of this family are read in, which have an "
        f"array {roots}; it has {len(arrays.arrays)} arrays:\n{listed(arrays.arrays)}",
        where=str(arrays.folder),
        hint="read it with the library that wrote it, and export it for Hugging Face",
    )


@attrs.frozen
class _Binding:
    """A layout's rules, to be applied to a checkpoint.

    Args:
        layout: The layout.
        rules: Its rules.
        arrays: The checkpoint's.
        found: Their names by those without what is before them.
        shapes: The shapes of Hugging Face's arrays.
    """

    layout: Layout
    rules: WeightMap
    arrays: StoredArrays
    found: Mapping[str, str]
    shapes: Mapping[str, Shape]

    def bound(self, axis: int | None) -> tuple[dict[str, _LayoutTensor], list[str]]:
        """Return the tensors, and what does not fit, with layers stacked in a dimension."""
        tensors: dict[str, _LayoutTensor] = {}
        missing: dict[str, str] = {}
        for rule, layer in self._expanded():
            if any(name not in self.shapes or name in tensors for name in rule.axcore):
                continue
            (name,) = rule.hf
            (shape,) = shapes_after(rule.transform, tuple(self.shapes[n] for n in rule.axcore))
            stacked_in = axis if layer is not None else None
            if stacked_in is not None:
                name = name.replace(self.layout.layer.format(layer=layer), self.layout.stack)
                shape = (*shape[:axis], self._num_layers, *shape[axis:])
            problem = self._problem(name, shape)
            if problem is not None:
                for one in rule.axcore:
                    # A rule whose array is there says more than one whose array is not.
                    if one not in missing or name in self.found:
                        missing[one] = problem
                continue
            for place, one in enumerate(rule.axcore):
                tensors[one] = _LayoutTensor(
                    self.arrays,
                    self.found[name],
                    stacked_in,
                    layer or 0,
                    rule.transform,
                    place,
                    self.shapes[one],
                )
        return tensors, [*self._lacking(tensors, missing), *self._left(tensors, missing)]

    @property
    def _num_layers(self) -> int:
        return 1 + max(int(found[1]) for n in self.shapes if (found := _NUMBERED.match(n)))

    def _expanded(self) -> Iterator[tuple[Rule, int | None]]:
        """Yield the rules of all layers, each with its number."""
        for rule in self.rules:
            if "{layer}" not in rule.axcore[0]:
                yield rule, None
                continue
            for layer in range(self._num_layers):
                hf, own = (
                    tuple(name.format(layer=layer) for name in names)
                    for names in (rule.axcore, rule.hf)
                )
                yield Rule(hf, own, rule.transform), layer

    def _problem(self, name: str, shape: Shape) -> str | None:
        if name not in self.found:
            return f"{name} is missing"
        has = self.arrays.arrays[self.found[name]].shape
        if has != shape:
            return f"{name} has shape {list(has)}; the model's has {list(shape)}"
        return None

    def _lacking(self, tensors: Mapping[str, Any], missing: Mapping[str, str]) -> list[str]:
        """Return what is said of the model's arrays that the checkpoint lacks."""
        lacking = [name for name in self.shapes if name not in tensors]
        unknown = f"has no place in the layout of {self.layout.name}"
        return list(dict.fromkeys(missing.get(name, f"{name} {unknown}") for name in lacking))

    def _left(self, tensors: Mapping[str, _LayoutTensor], missing: Mapping[str, str]) -> list[str]:
        """Return what is said of the checkpoint's arrays that the model lacks."""
        used = {one.name for one in tensors.values()}
        said = {text.partition(" ")[0] for text in missing.values()}
        return [
            f"{name} is not of this model"
            for name, stored in self.found.items()
            if stored not in used and name not in said
        ]


def _heads(count: int, *more: Transform) -> Transform:
    """Return the transform of a matrix [N·H, D] to [D, N, H], and what more is done to that."""
    return Chain(Transpose(), SplitAxis(count, axis=1), *more)


def _rows(rotary_rows: RotaryRows, head_dim: int, axis: int) -> Transform:
    return interleaved(head_dim, axis=axis) if rotary_rows == "pairs" else Same()


def maxtext(*, scales_queries: bool = False) -> Layout:
    """Return MaxText's layout of decoders like a Llama.

    Layers are stacked in the second dimension of each array (`param_scan_axis`), or each has its
    own arrays. Kernels are [D, N, H], [D, K, H], [N, H, D], [D, F] and [F, D]; fused ones are
    [D, N + 2K, H] and [D, 2, F].

    Args:
        scales_queries: Whether the queries' kernel contains the factor 1 / sqrt(H), by which such
            models multiply no logits.

    Source: AI-Hypercomputer/maxtext at e591f30, src/maxtext/layers/attentions.py: `init_query_w`
        (the factor), `init_rotary_embedding` (pairs for `llama3.1`, halves for others);
        embeddings.py, `RotaryEmbedding` (halves) and `LLaMARotaryEmbedding` (pairs).
    """

    def rules(described: Described) -> WeightMap:
        heads, kv_heads, width = described.num_heads, described.num_kv_heads, described.head_dim
        rows = described.rotary_rows or _maxtext_rows(described.values)
        scaled: Transform = Divide(math.sqrt(width)) if scales_queries else Same()
        query = _heads(heads, _rows(rows, width, 2), scaled)
        key, value = _heads(kv_heads, _rows(rows, width, 2)), _heads(kv_heads)
        parts = Chain(Each((query, key, value)), Concatenate((heads, kv_heads, kv_heads), axis=1))
        attention = (
            Rule(("q_proj.weight",), ("query.kernel",), query),
            Rule(("k_proj.weight",), ("key.kernel",), key),
            Rule(("v_proj.weight",), ("value.kernel",), value),
            Rule(("q_proj.weight", "k_proj.weight", "v_proj.weight"), ("qkv_proj.kernel",), parts),
            *(
                Rule((f"{hf}_proj.bias",), (f"{name}.bias",), Chain(SplitAxis(count), *more))
                for hf, name, count, more in (
                    ("q", "query", heads, (_rows(rows, width, 1), scaled)),
                    ("k", "key", kv_heads, (_rows(rows, width, 1),)),
                    ("v", "value", kv_heads, ()),
                )
            ),
            Rule(("q_norm.weight",), ("query_norm.scale",), _rows(rows, width, 0)),
            Rule(("k_norm.weight",), ("key_norm.scale",), _rows(rows, width, 0)),
            Rule(("o_proj.weight",), ("out.kernel",), Chain(Transpose(), SplitAxis(heads))),
        )
        layer = (
            same("input_layernorm.weight", "pre_self_attention_layer_norm.scale"),
            same("post_attention_layernorm.weight", "post_self_attention_layer_norm.scale"),
            *below("self_attn", "self_attention", attention),
            Rule(("mlp.gate_proj.weight",), ("mlp.wi_0.kernel",), Transpose()),
            Rule(("mlp.up_proj.weight",), ("mlp.wi_1.kernel",), Transpose()),
            Rule(
                ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
                ("mlp.wi.kernel",),
                Chain(Transpose(), StackArrays(2, axis=1)),
            ),
            Rule(("mlp.down_proj.weight",), ("mlp.wo.kernel",), Transpose()),
        )
        return (
            same("model.embed_tokens.weight", "token_embedder.embedding"),
            *below(_LAYER, "decoder.layers_{layer}", layer),
            same("model.norm.weight", "decoder.decoder_norm.scale"),
            Rule(("lm_head.weight",), ("decoder.logits_dense.kernel",), Transpose()),
        )

    return Layout(
        name="MaxText",
        root="token_embedder.embedding",
        rules=rules,
        layer="decoder.layers_{layer}",
        stack="decoder.layers",
        axes=(1, 0),
        chooses_rows=True,
    )


def _maxtext_rows(values: Json) -> RotaryRows:
    """Return which rows a model's positions rotate together in MaxText.

    Raises:
        ConfigError: That depends on more than how the positions are scaled.
    """
    kind = (values.get("rope_scaling") or {}).get("rope_type", PLAIN)
    # Only the class of pairs has Llama 3.1's scaling, and only that of halves a linear one.
    rows: dict[str, RotaryRows] = {PLAIN: "halves", "linear": "halves", "llama3": "pairs"}
    if kind not in rows:
        raise ConfigError(
            f"the model's positions are scaled as {kind!r}, and MaxText may rotate halves or pairs",
            where="--config",
            hint="--rotary-rows pairs if its rope_interleave was true, which is the default; "
            "otherwise --rotary-rows halves",
        )
    return rows[kind]


def _axlearn(described: Described) -> WeightMap:
    heads, kv_heads, width = described.num_heads, described.num_kv_heads, described.head_dim
    pairs = _rows("pairs", width, 2)
    query, key, value = _heads(heads, pairs), _heads(kv_heads, pairs), _heads(kv_heads)
    names = ("q_proj.weight", "k_proj.weight", "v_proj.weight")
    each = Each((query, key, value))
    projections = [
        *(
            Rule((name,), (name,), transform)
            for name, transform in zip(names, (query, key, value), strict=True)
        ),
        Rule(
            names,
            ("qkv_proj.weight",),
            Chain(each, Concatenate((heads, kv_heads, kv_heads), axis=1)),
        ),
    ]
    if heads == kv_heads:
        projections.append(Rule(names, ("qkv_proj.weight",), Chain(each, StackArrays(3))))
    attention = (
        *(
            Rule(rule.axcore, (f"i_proj.i_proj.{rule.hf[0]}",), rule.transform)
            for rule in projections
        ),
        Rule(("o_proj.weight",), ("o_proj.weight",), SplitAxis(heads, axis=1)),
    )
    layer = (
        same("input_layernorm.weight", "self_attention.norm.scale"),
        same("post_attention_layernorm.weight", "feed_forward.norm.scale"),
        *below("self_attn", "self_attention.attention", attention),
        Rule(("mlp.gate_proj.weight",), ("feed_forward.linear1_0.weight",), Transpose()),
        Rule(("mlp.up_proj.weight",), ("feed_forward.linear1_1.weight",), Transpose()),
        Rule(("mlp.down_proj.weight",), ("feed_forward.linear2.weight",), Transpose()),
    )
    return (
        same("model.embed_tokens.weight", "decoder.emb.token_emb.weight"),
        *below(_LAYER, "decoder.transformer.layer{layer}", layer),
        same("model.norm.weight", "decoder.output_norm.scale"),
        same("lm_head.weight", "decoder.lm_head.weight"),
    )


AXLEARN = Layout(
    name="AXLearn",
    root="decoder.emb.token_emb.weight",
    rules=_axlearn,
    layer="decoder.transformer.layer{layer}",
    stack="decoder.transformer.repeat.layer",
)
"""AXLearn's layout of decoders like a Llama (`fuji`), with rotary positions.

Queries, keys and values have a weight each, [D, N, H], or one of all: [D, N + 2K, H], or
[3, D, N, H] where all have as many heads. The output's is [D, N, H]; the linear layers' are [D, F]
and [F, D]. Layers are stacked in the first dimension, below `repeat`. Positions rotate pairs.

Source: apple/axlearn at 34aed43, axlearn/common/attention.py: `apply_rotary_position_embeddings`
    (pairs), `FusedQKVLinear`, `FusedGroupedQKVLinear`, `MultiheadOutputLinear`; and
    axlearn/experiments/text/gpt/fuji.py.
"""


def _flax(described: Described) -> WeightMap:
    return tuple(_flax_rule(name) for name in described.names)


def _flax_rule(name: str) -> Rule:
    if name == "model.embed_tokens.weight":
        return Rule((name,), ("model.embed_tokens.embedding",))
    if name.endswith("_proj.weight") or name == "lm_head.weight":
        return Rule((name,), (f"{name.removesuffix('weight')}kernel",), Transpose())
    return Rule((name,), (name,))


FLAX = Layout(name="Flax", root="model.embed_tokens.embedding", rules=_flax)
"""The layout of transformers' models in Flax: Hugging Face's names, and kernels with inputs first.

Source: huggingface/transformers 4.40, models/llama/modeling_flax_llama.py.
"""
