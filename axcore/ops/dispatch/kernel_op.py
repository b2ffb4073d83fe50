"""`KernelOp`: how an op calls the kernels that are chosen for it.

A kernel is a pure function of a call's inputs and its spec. One that JAX cannot differentiate gets
a kernel of the op `{op}_backward`, chosen for the same call: by a pin, else the one of the forward
kernel's name where it can serve, else as any other.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs

from axcore.errors import KernelError
from axcore.ops.dispatch.call import Call
from axcore.ops.dispatch.comparison import current_comparison
from axcore.ops.dispatch.kernel_result import checked_gradients, checked_outputs, result_names
from axcore.ops.dispatch.plan import choose_and_record
from axcore.ops.dispatch.policy import current_policy
from axcore.ops.dispatch.registry import op_kernels
from axcore.parallel.shard_op import OpSharding, shard_op
from axcore.plugins import Kernel
from axcore.registration.returns import CORE

KernelFunction = Callable[..., Any]
"""`(inputs, spec) -> outputs`; of a backward kernel `(inputs, spec, **rows) -> gradients`."""


@attrs.frozen(kw_only=True)
class KernelOp:
    """What one op knows of its kernels.

    Args:
        name: The op's name.
        sharding: From inputs and spec to the logical axes of the call's arrays.
        results: From what a forward kernel is given, inputs and spec, to the `ResultSpec`s of what
            it has to return.
        custom_vjp: The op from two kernels: `(inputs, spec, *, forward, backward) -> outputs`. None
            for an op without gradients, or of which kernels compute products of gradients.
        differentiable_sharding: `sharding` of kernels that JAX differentiates, where what they
            return is not what forward kernels do.
        differentiable_results: `results` of them, likewise.
    """

    name: str
    sharding: Callable[[Any, Any], OpSharding]
    results: Callable[[Any, Any], Any]
    custom_vjp: Callable[..., Any] | None = None
    differentiable_sharding: Callable[[Any, Any], OpSharding] | None = None
    differentiable_results: Callable[[Any, Any], Any] | None = None

    @property
    def backward(self) -> str:
        """The name of the op that backward kernels serve."""
        return f"{self.name}_backward"

    def run(self, call: Call, inputs: Any, spec: Any) -> Any:
        """Return the op's outputs by the kernels chosen for a call.

        Raises:
            KernelError: No kernel can serve the call, or a pin cannot be followed.
        """
        kernel = choose_and_record(call).kernel
        backward = None
        if self.custom_vjp is None or kernel.is_differentiable:
            self._refuse_pinned_backward(kernel)
        else:
            call_backward = attrs.evolve(call, op=self.backward)
            backward = choose_and_record(call_backward, partner=kernel.name).kernel
        function = self.watched(self._by(kernel, backward), kernel, backward)
        return function(inputs, spec)

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
        """Return the op by a forward and a backward kernel, on whole arrays."""
        if self.custom_vjp is None:
            raise KernelError(f"{self.name} has no backward kernels.")
        return partial(self.custom_vjp, forward=forward, backward=backward)

    def sharded(self, kernel: Kernel, function: KernelFunction) -> KernelFunction:
        """Return a kernel's function as it is called on whole arrays under a mesh."""
        declared, results = self.sharding, self.results
        if kernel.is_differentiable:
            declared = self.differentiable_sharding or declared
            results = self.differentiable_results or results

        def run(inputs: Any, spec: Any, **rows: Any) -> Any:
            sharding = declared(inputs, spec)

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


def _of_core(op: str) -> Kernel:
    """Return the core's kernel of an op for any hardware; it is as lean as the core can be."""
    own = [one for one in op_kernels(op) if one.plugin == CORE]
    named = {one.name: one for one in own}
    return named.get("portable") or next(one for one in own if one.band == "reference")
