"""`StackRunner`: runs the copies of a module in another order than a scan."""

from collections.abc import Callable
from typing import Any

from axcore.errors import ModuleError
from axcore.module.context import current_context
from axcore.module.invoke import as_pure_function, split_static
from axcore.module.outputs import Outputs
from axcore.module.rng import format_path
from axcore.module.transforms import (
    StackedModule,
    folded,
    same_structure,
)


class StackRunner:
    """The copies of a `StackedModule` at work: any of them, in any order, each as a pure function.

    The caller merges what they add and passes it on, with `finish`.

    Attributes:
        state: The stacked state.
        specs: Of that state.
        channels: Values in the channels that are open.
    """

    def __init__(self, repeated: StackedModule) -> None:
        context = current_context("copies of a module were run").child(repeated.module)
        self._module = repeated.module
        self._context = context
        self._root = context.key() if context.has_key else None
        self.state = context.state if context.frame.has_state_at(context.path) else {}
        self.specs = repeated.specs_at(context.path, set())
        # A copy, since several parts of a batch run with their own values until `finish`.
        self.channels = dict(context.frame.channels)

    def copy(
        self, index: Any, part: Any = None, select: Callable[[Any], Any] | None = None
    ) -> Callable[..., tuple[Any, dict[str, Any], Outputs]]:
        """Return one copy as `(state, x, channels, args) -> (x, channels, outputs)`, pure.

        That function raises a ModuleError where the copy opens a channel, or captures a value.

        Args:
            index: Which copy it is; may be traced.
            part: Which part of a batch the call is for: each has random keys of its own. None
                where the call is for all of it.
            select: What takes the copy's state out of the one that the function is given. Under
                the module's `Remat` backward takes it out again, and keeps none.
        """
        pure = as_pure_function(self._context, type(self._module).forward)
        # By its number in the stack, so that a pipeline samples what a scan of the same layers
        # does.
        key = folded(self._root, index)
        # One more fold for a part, or each micro-batch would get the same dropout mask.
        key = key if part is None else folded(key, part)
        remat = self._module.config.remat

        def run(state: Any, x: Any, channels: dict[str, Any], args: tuple[Any, ...]) -> Any:
            arrays, rebuild = split_static(args)

            def body(
                state: Any, index: Any, key: Any, x: Any, channels: Any, arrays: list[Any]
            ) -> Any:
                own = state if select is None else select(state)
                return pure(own, key, channels, (x, *rebuild(arrays)), {}, index)

            wrapped = body if remat is None else remat.wrap(body, in_scan=True)
            x, outputs, after = wrapped(state, index, key, x, channels, arrays)
            self._check(channels, after, outputs)
            return x, after, outputs

        return run

    def finish(self, channels: dict[str, Any], outputs: Outputs) -> None:
        """Pass on what all copies added, and the values shared after them."""
        self._context.frame.outputs.absorb(outputs)
        self._context.frame.channels.update(channels)

    def _check(self, before: Any, after: Any, outputs: Outputs) -> None:
        where = format_path(self._context.path)
        # A pipeline's buffer has one shape for all stages, made before the first runs.
        if not same_structure(before, after):
            raise ModuleError(
                "a channel was opened, or changed its shape, by layers that run on parts of a "
                "batch at once",
                where=where,
                hint="open it before these layers, or run them in sequence: ScannedLayers",
            )
        if outputs.captures:
            raise ModuleError(
                f"{', '.join(outputs.captures)} cannot be captured in layers that run on parts of "
                "a batch at once",
                where=where,
                hint="use ScannedLayers, whose state is the same, to look inside",
            )
