"""`KernelOp`: what makes an op: its call, its sharding, its gradient, and its kernels, checked.

A kernel is a pure function of a call's inputs and its spec. One that JAX cannot differentiate gets
a kernel of the op `{op}_backward`, chosen for the same call: by a pin, else the one of the forward
kernel's name where it can serve, else as any other.

The checks run while an op is traced, and compare shapes and dtypes in Python: they add nothing to
the program. An op declares its results by `ResultSpec`s, which tests compare with its reference.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

import attrs
import jax
import jax.numpy as jnp
from jax import Array

from axcore.errors import KernelError
from axcore.ops.comparison import current_comparison
from axcore.ops.dispatch import Call, Feature, current_policy, op_kernels
from axcore.ops.plan import choose_and_record
from axcore.parallel.shard_op import OpSharding, shard_op
from axcore.plugins import Kernel
from axcore.registration import CORE

_CORRECT = "correct what the kernel returns"


@attrs.frozen
class _Problem:
    """What is wrong with one array, and what the kernel's author is to do."""

    what: str
    fix: str = _CORRECT


@attrs.frozen
class ResultSpec:
    """What an op asks of one array that a kernel returns.

    Args:
        name: What the op calls the array.
        shape: Its shape.
        dtype: Name of its dtype.
        is_optional: Whether a kernel may return None in its place.
        may_be_wider: Whether float32 is taken where the dtype is a smaller float.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    is_optional: bool = False
    may_be_wider: bool = False

    @classmethod
    def like(cls, name: str, array: Array) -> "ResultSpec":
        """Return the spec of a result with the shape and dtype of an array."""
        return cls(name, array.shape, array.dtype.name)

    def problem(self, returned: Any) -> "_Problem | None":
        """Return what is wrong with what was returned in the array's place; None if nothing is."""
        if returned is None:
            missing = _Problem(f"{self.name} is missing; expected {self}")
            return None if self.is_optional else missing
        is_shaped = getattr(returned, "shape", None) == self.shape
        dtype = getattr(returned, "dtype", None)
        may_be = {self.dtype, "float32"} if self.may_be_wider else {self.dtype}
        if is_shaped and str(dtype) in may_be:
            return None
        fix = f"cast it in the kernel: .astype({self.dtype!r})" if is_shaped else _CORRECT
        return _Problem(f"{self.name} is {_described(returned)}; expected {self}", fix)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def checked_outputs(kernel: Kernel, returned: Any, wanted: Any) -> Any:
    """Return what a forward kernel returned.

    Args:
        kernel: Its record.
        returned: A tree of arrays.
        wanted: The same tree of `ResultSpec`s.

    Raises:
        KernelError: It is another tree, or an array has another shape or dtype.
    """
    problems = list(_problems(returned, wanted))
    if problems:
        raise _wrong(kernel, problems)
    return _strongly_typed(returned)


def checked_gradients(kernel: Kernel, returned: Any, inputs: Any) -> Any:
    """Return what a backward kernel returned: a gradient for each floating input of a call.

    What is returned for integers, or for inputs that the call lacks, has no meaning.

    Raises:
        KernelError: It is another tree than the inputs, a gradient is missing, or one has another
            shape or a dtype that loses precision.
    """
    # Kernels that the op splits may sum in float32: it casts what all devices added up.
    is_wide = kernel.partitioned_by == "op"
    wanted = type(inputs)(
        *(_gradient_spec(*one, may_be_wider=is_wide) for one in inputs._asdict().items())
    )
    problems = list(_problems(returned, wanted))
    if problems:
        raise _wrong(kernel, problems)
    return _strongly_typed(returned)


def result_names(wanted: Any) -> tuple[str, ...]:
    """Return the names of a tree of `ResultSpec`s, but for those that a kernel may leave out."""
    specs = jax.tree.leaves(wanted, is_leaf=lambda node: isinstance(node, ResultSpec))
    return tuple(spec.name for spec in specs if not spec.is_optional)


def _gradient_spec(name: str, array: Array | None, *, may_be_wider: bool) -> ResultSpec | None:
    if array is None or not jnp.issubdtype(array.dtype, jnp.floating):
        return None
    spec = ResultSpec.like(f"the gradient of {name}", array)
    return attrs.evolve(spec, may_be_wider=may_be_wider)


def _problems(returned: Any, wanted: Any) -> Iterator[_Problem]:
    """Yield what is wrong with a tree; where nothing is wanted, anything may be."""
    if wanted is None:
        return
    if isinstance(wanted, ResultSpec):
        problem = wanted.problem(returned)
        if problem is not None:
            yield problem
    elif type(returned) is not type(wanted) or len(returned) != len(wanted):
        yield _Problem(f"the result is {_described(returned)}; expected {_described(wanted)}")
    else:
        for one, below in zip(returned, wanted, strict=True):
            yield from _problems(one, below)


def _strongly_typed(tree: Any) -> Any:
    """Return arrays whose dtype is their own: a weak one would give way to what it is added to."""
    return jax.tree.map(
        lambda x: jax.lax.convert_element_type(x, x.dtype) if jax.typeof(x).weak_type else x, tree
    )


def _wrong(kernel: Kernel, problems: list[_Problem]) -> KernelError:
    authors = "axcore" if kernel.plugin in ("", CORE) else kernel.plugin
    found = "; ".join(one.what for one in problems)
    return KernelError(
        f"the kernel {kernel.key!r} of plugin {kernel.plugin!r} ({kernel.forward.target}) returned "
        f"something else than the op {kernel.op!r} asks for: {found}",
        where=f"plugin {kernel.plugin!r}",
        hint=f"{problems[0].fix}; report it to the authors of {authors}; "
        f"{how_to_continue_without(kernel)}",
    )


def how_to_continue_without(kernel: Kernel) -> str:
    """Return what a user can write so that another kernel serves."""
    others = [one for one in op_kernels(kernel.op) if one.plugin == CORE and one.key != kernel.key]
    names = [one.name for one in others if one.name == "portable" or one.priority == 0]
    if not names:
        return f"to continue without it, set AXCORE_BLOCK={kernel.plugin}"
    pin = f'--set "kernels.pins={ {kernel.op: names[0]} }"'
    in_python = f'KernelPolicy(pins={{"{kernel.op}": "{names[0]}"}})'
    return f"to continue without it, pin another kernel: {pin}, or in Python {in_python}"


def _described(tree: Any) -> str:
    """Return a tree as text, with the dtype and the shape of each array in its place."""
    if isinstance(tree, tuple):
        names = getattr(tree, "_fields", None)
        parts = [_described(one) for one in tree]
        if names is not None:
            parts = [f"{name}={part}" for name, part in zip(names, parts, strict=True)]
        return f"{type(tree).__name__ if names else ''}({', '.join(parts)})"
    if hasattr(tree, "shape") and hasattr(tree, "dtype"):
        return f"{tree.dtype}[{','.join(map(str, tree.shape))}]"
    return repr(tree)


Outputs = TypeVar("Outputs")

KernelFunction = Callable[..., Any]
"""`(inputs, spec) -> outputs`; of a backward kernel `(inputs, spec, **rows) -> gradients`."""


STAGE = {"stage": True}
"""Metadata of a spec's field which says what part of a call a kernel computes: no kernel is chosen
by it, so it is not a feature of the `Call`."""

_SHAPE_LETTERS = re.compile(r"_[A-Z]+$")


@attrs.frozen(kw_only=True)
class KernelOp(Generic[Outputs]):
    """An op: what a call is made of, how it is split, its gradient, and how kernels are called.

    Args:
        name: The op's name.
        inputs: The NamedTuple of a call's arrays; fields may carry shape letters, `q_BTNH`.
        spec: The attrs class of a call's static choices; None where there are none.
        sharding: From inputs and spec to the logical axes of the call's arrays.
        results: From what a forward kernel is given, inputs and spec, to the `ResultSpec`s of what
            it has to return.
        custom_vjp: The op from two kernels: `(inputs, spec, *, forward, backward) -> outputs`, as
            `vjp_from_inputs` makes it. None for an op without gradients, or of which kernels
            compute products of gradients.
        differentiable_sharding: `sharding` of kernels that JAX differentiates, where what they
            return is not what forward kernels do.
        differentiable_results: `results` of them, likewise.
    """

    name: str
    inputs: type[Any]
    spec: type[Any] | None = None
    sharding: Callable[[Any, Any], OpSharding]
    results: Callable[[Any, Any], Any]
    custom_vjp: Callable[..., Any] | None = None
    differentiable_sharding: Callable[[Any, Any], OpSharding] | None = None
    differentiable_results: Callable[[Any, Any], Any] | None = None

    @property
    def backward(self) -> str:
        """The name of the op that backward kernels serve."""
        return f"{self.name}_backward"

    def call(self, inputs: Any, spec: Any = None, **features: Feature) -> Call:
        """Return the abstract call that kernels accept or refuse.

        Arrays go by the names of their fields without shape letters: `q` for `q_BTNH`.

        Args:
            inputs: The arrays, or anything with shapes and dtypes in their place.
            spec: The static choices, which become features.
            **features: What else is asked for.
        """
        arrays = {_array_name(field): array for field, array in inputs._asdict().items()}
        choices = {} if spec is None else attrs.asdict(spec, filter=_is_feature)
        return Call.of(self.name, arrays, {**choices, **features})

    def parts(self, call: Call) -> tuple[Any, Any]:
        """Return what a call was made of, with `jax.ShapeDtypeStruct`s in place of arrays.

        `unsupported_reason` of a kernel can so ask for `inputs.bias_BNTS is None`.
        """
        arrays = {field: _abstract(call, _array_name(field)) for field in self.inputs._fields}
        choices: Iterable[Any] = () if self.spec is None else attrs.fields(self.spec)
        asked = {one.name: call.feature(one.name) for one in choices if _is_feature(one)}
        return self.inputs(**arrays), None if self.spec is None else self.spec(**asked)

    def run(self, inputs: Any, spec: Any = None, **features: Feature) -> Outputs:
        """Return the op's outputs by the kernels chosen for its call.

        Arguments are those of `call`.

        Raises:
            KernelError: No kernel can serve the call, or a pin cannot be followed.
        """
        call = self.call(inputs, spec, **features)
        kernel = choose_and_record(call).kernel
        backward = None
        if self.custom_vjp is None or kernel.is_differentiable:
            self._refuse_pinned_backward(kernel)
        else:
            # Chosen for the same call, and now: at the time of the backward pass another policy
            # may be in force.
            call_backward = attrs.evolve(call, op=self.backward)
            backward = choose_and_record(call_backward, partner=kernel.name).kernel
        function = self.watched(self._by(kernel, backward), kernel, backward)
        outputs: Outputs = function(inputs, spec)
        return outputs

    def watched(
        self, function: KernelFunction, kernel: Kernel, backward: Kernel | None = None
    ) -> KernelFunction:
        """Return the op by some kernels; where kernels are compared, one that compares them.

        Args:
            function: The op by these kernels.
            kernel: The forward kernel.
            backward: The backward kernel, where there is one.
        """
        comparison = current_comparison()
        if comparison is None:
            return function
        core = _of_core(self.name)
        core_backward = None
        if self.custom_vjp is not None and not core.is_differentiable:
            core_backward = _of_core(self.backward)
        results = self.differentiable_results or self.results

        def run(inputs: Any, spec: Any) -> Any:
            return comparison.watch(
                function,
                self._by(core, core_backward),
                kernel=kernel,
                backward=backward,
                reference=core,
                results=result_names(results(inputs, spec)),
            )(inputs, spec)

        return run

    def _by(self, kernel: Kernel, backward: Kernel | None) -> KernelFunction:
        """Return the op by a forward kernel, and a backward one where JAX cannot differentiate."""
        forward = self.sharded(kernel, kernel.forward.resolve())
        if backward is None:
            return forward
        return self.with_gradient(forward, self.sharded(backward, backward.forward.resolve()))

    def function(
        self, kernel: Kernel, forward: KernelFunction, backward: KernelFunction | None = None
    ) -> KernelFunction:
        """Return the op by a kernel: a function `(inputs, spec)` that JAX differentiates.

        Args:
            kernel: The kernel's record.
            forward: Its function, or another form of it.
            backward: A backward kernel's, for a kernel that JAX does not differentiate.
        """
        if self.custom_vjp is None or kernel.is_differentiable or backward is None:
            return self.sharded(kernel, forward)
        return self.with_gradient(self.sharded(kernel, forward), self.sharded(kernel, backward))

    def with_gradient(self, forward: KernelFunction, backward: KernelFunction) -> KernelFunction:
        """Return the op by a forward and a backward kernel, on full arrays."""
        if self.custom_vjp is None:
            raise KernelError(f"{self.name} has no backward kernels.")
        return partial(self.custom_vjp, forward=forward, backward=backward)

    def sharded(self, kernel: Kernel, function: KernelFunction) -> KernelFunction:
        """Return a kernel's function as it is called on full arrays under a mesh."""
        declared, results = self.sharding, self.results
        if kernel.is_differentiable:
            declared = self.differentiable_sharding or declared
            results = self.differentiable_results or results

        def run(inputs: Any, spec: Any, **rows: Any) -> Any:
            sharding = declared(inputs, spec)

            # Checked inside of the split, where shapes are those that the kernel saw.
            def on_device(inputs: Any, **rows: Any) -> Any:
                try:
                    returned = function(inputs, spec, **rows)
                except Exception as error:
                    kernel.note(error, "forward")
                    raise
                if rows:
                    return checked_gradients(kernel, returned, inputs)
                return checked_outputs(kernel, returned, results(inputs, spec))

            if kernel.partitioned_by == "compiler":
                return on_device(inputs, **rows)
            return shard_op(on_device, sharding, inputs, rows or None)

        return run

    def _refuse_pinned_backward(self, kernel: Kernel) -> None:
        pin = current_policy().pins.get(self.backward)
        if pin is not None:
            raise KernelError(
                f"{self.backward} is pinned to {pin}, but {self.name} runs {kernel.name}, "
                "which brings its own gradient.",
                hint=f"remove the pin, or pin {self.name} to a kernel that is forward only",
            )


def vjp_from_inputs(cotangent: str) -> Callable[..., Any]:
    """Return the `custom_vjp` of an op whose backward kernels need no residuals but the inputs.

    To compute again what forward knew costs such ops less than to keep it.

    Args:
        cotangent: What backward kernels call the gradient of the output.
    """

    def custom_vjp(
        inputs: Any, spec: Any, *, forward: KernelFunction, backward: KernelFunction
    ) -> Any:
        """Return `forward(inputs, spec)`, whose gradient is `backward`."""

        @jax.custom_vjp
        def run(inputs: Any) -> Any:
            return forward(inputs, spec)

        def run_forward(inputs: Any) -> tuple[Any, Any]:
            return forward(inputs, spec), inputs

        def run_backward(inputs: Any, gradient: Any) -> tuple[Any]:
            return (backward(inputs, spec, **{cotangent: gradient}),)

        run.defvjp(run_forward, run_backward)
        return run(inputs)

    return custom_vjp


def _array_name(field: str) -> str:
    return _SHAPE_LETTERS.sub("", field)


def _is_feature(field: Any, value: Any = None) -> bool:
    return not field.metadata.get("stage")


def _abstract(call: Call, array: str) -> jax.ShapeDtypeStruct | None:
    if not call.has(array):
        return None
    return jax.ShapeDtypeStruct(call.shape(array), jnp.dtype(call.dtype(array)))  # type: ignore[no-untyped-call]


def _of_core(op: str) -> Kernel:
    """Return the core's kernel of an op for any hardware; it is as lean as the core can be."""
    own = [one for one in op_kernels(op) if one.plugin == CORE]
    named = {one.name: one for one in own}
    return named.get("portable") or next(one for one in own if one.band == "reference")
