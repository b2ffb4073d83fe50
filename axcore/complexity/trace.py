"""`Trace`: what a model really computes, read off its traced program and not off its config."""

import re
from collections.abc import Iterator
from typing import Any

import attrs
import jax
import jax.numpy as jnp

from axcore._jax_compat import inner_jaxprs, used_inputs, without_dead_code
from axcore.data import ExampleData
from axcore.layers import KVCacheConfig, PagedKVCacheConfig, continued_rows
from axcore.modifiers import for_serving
from axcore.module import Module, StackedModule, functional
from axcore.ops import KernelPolicy, recording_choices, use_policy
from axcore.plugins import Hardware
from axcore.tasks import Task
from axcore.trainer import resolve

BATCH_SIZE, SEQ_LEN = 2, 16

_TRANSFORMATION = re.compile(r"\w+\(|\)")


@attrs.frozen
class Operation:
    """One operation that the loss depends on.

    Args:
        scope: Names of the modules at work, outermost first.
        name: Of the primitive, `dot_general` for example.
        dtypes: Of its operands.
    """

    scope: tuple[str, ...]
    name: str
    dtypes: tuple[str, ...]


@attrs.frozen
class Trace:
    """A training loss, of a model or of the task that it is trained for, traced for some hardware.

    Args:
        model: The model that was traced.
        operations: The operations that the loss depends on; results that are not used are left out.
        kernels: Names of the kernels that were chosen, by op.
        hardware: What it was traced for.
        task: What the model is trained for, in addition to the next token; None for that alone.
        batch: Names of the arrays of a batch.
        inputs: Those of them that the loss depends on.
    """

    model: Module
    operations: frozenset[Operation]
    kernels: dict[str, frozenset[str]]
    hardware: Hardware
    task: Module | None = None
    batch: frozenset[str] = frozenset()
    inputs: frozenset[str] = frozenset()


def trace_model(cfg: Any, hardware: Hardware) -> Trace:
    """Return the trace of a training config's model; make no array and compile nothing.

    Args:
        cfg: A training config.
        hardware: What its mesh rule and its kernels are chosen for.
    """
    cfg = resolve(cfg, hardware).config
    task = None if cfg.task is None else cfg.task.build(model=cfg.model)
    model = cfg.model.build() if task is None else task.model
    is_text = task is None and not isinstance(cfg.data, ExampleData.Config)
    batch = _abstract_batch() if is_text else _abstract_batch_of(cfg.data, task)
    state = _abstract_state(model if task is None else task)
    with use_policy(KernelPolicy.of(cfg, hardware)), recording_choices() as choices:
        jaxpr = jax.make_jaxpr(_loss_of(task or model))(state, batch).jaxpr
    kernels: dict[str, frozenset[str]] = {}
    for choice in choices:
        op = choice.call.op
        kernels[op] = kernels.get(op, frozenset()) | {choice.kernel.name}
    # Of a dict arrays come by their sorted names, and after those of the state.
    used = used_inputs(jaxpr)[-len(batch) :]
    return Trace(
        model,
        frozenset(_operations(without_dead_code(jaxpr), ())),
        kernels,
        hardware,
        task,
        frozenset(batch),
        frozenset(name for name, is_used in zip(sorted(batch), used, strict=True) if is_used),
    )


def trace_serving(model: Module) -> tuple[Module, frozenset[Operation]]:
    """Return the model that serves in the place of one, and what its logits depend on.

    A call continues texts whose tokens are in pages. Kernels are those of every platform.

    Args:
        model: The model, as it is trained.
    """
    pages = PagedKVCacheConfig(num_pages=2 * SEQ_LEN, page_size=1)
    cache_config = KVCacheConfig(
        num_rows=BATCH_SIZE, capacity=2 * SEQ_LEN, max_length=2 * SEQ_LEN, pages=pages
    )
    served: Any = for_serving(model.config, cache_config).build()

    def logits_of(state: Any, tokens: Any, num_cached: Any, page_table: Any) -> Any:
        info = continued_rows(tokens, num_cached, num_cached, page_table=page_table)
        return functional(served, state, tokens, info, method="logits")[0]

    rows = (BATCH_SIZE,)
    shapes = ((*rows, SEQ_LEN), rows, (*rows, 2 * SEQ_LEN))
    ints = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes)  # type: ignore[no-untyped-call]
    with use_policy(KernelPolicy(hardware=Hardware.parse("cpu-1"))):
        jaxpr = jax.make_jaxpr(logits_of)(_abstract_state(served), *ints)
    return served, frozenset(_operations(without_dead_code(jaxpr.jaxpr), ()))


def modules_of(model: Module) -> Iterator[tuple[tuple[str, ...], Module]]:
    """Yield every module below a root, with its path as scopes spell it."""
    for steps, child in model.children():
        inner = child.module if isinstance(child, StackedModule) else child
        here = _spelled(steps)
        yield here, inner
        for below, module in modules_of(inner):
            yield (*here, *below), module


def _spelled(steps: tuple[Any, ...]) -> tuple[str, ...]:
    """Return a path with each index joined to the name before it, as named scopes have it."""
    spelled: list[str] = []
    for step in steps:
        if isinstance(step, int):
            spelled[-1] += f"_{step}"
        else:
            spelled.append(str(step))
    return tuple(spelled)


def _loss_of(model: Module) -> Any:
    def loss(state: Any, batch: Any) -> Any:
        _, outputs = functional(model, state, batch, rng=0, training=True)
        return outputs.total_loss()

    return loss


def _abstract_state(root: Any) -> Any:
    is_spec = lambda leaf: hasattr(leaf, "abstract")  # noqa: E731
    specs = root.param_specs()
    if isinstance(root, Task):
        # A task's state is its model's, and what it keeps in addition.
        specs = root.model.param_specs()
        specs = {**specs, **root.kept_specs(specs)}
    return jax.tree.map(lambda spec: spec.abstract, specs, is_leaf=is_spec)


def _abstract_batch_of(data: Any, task: Module | None) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the arrays of a loader's batches, for a task where there is one."""
    loader = data.for_shapes().build()
    if task is not None:
        loader.on_task(task)
    arrays = loader.batch_spec().arrays
    return {
        name: jax.ShapeDtypeStruct(one.shape, one.dtype)  # type: ignore[no-untyped-call]
        for name, one in arrays.items()
    }


def _abstract_batch() -> dict[str, jax.ShapeDtypeStruct]:
    ints = ("tokens", "targets", "positions", "segment_ids")
    dtypes = {**dict.fromkeys(ints, jnp.int32), "loss_weights": jnp.float32}
    shape = (BATCH_SIZE, SEQ_LEN)
    return {name: jax.ShapeDtypeStruct(shape, dtype) for name, dtype in dtypes.items()}  # type: ignore[no-untyped-call]


def _operations(jaxpr: Any, outer: tuple[str, ...]) -> Iterator[Operation]:
    for equation in jaxpr.eqns:
        text = _TRANSFORMATION.sub("", str(equation.source_info.name_stack))
        scope = (*outer, *filter(None, text.split("/")))
        dtypes = tuple(str(getattr(var.aval, "dtype", "")) for var in equation.invars)
        yield Operation(scope, equation.primitive.name, dtypes)
        for inner in inner_jaxprs(equation.params):
            yield from _operations(inner, scope)
