"""The invocation context: how a module reads its parameters and adds its outputs while it runs.

A `Frame` is one pure call: a state (of the full tree or of a subtree), a key and a collector of
outputs. A transformation (scan, remat, vmap) runs its body in a frame of its own, whose outputs
come back as values and are absorbed by the frame outside. A `Context` is one module at work.
"""

import itertools
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
from jaxtyping import Array

from axcore._jax_compat import trace_state
from axcore.errors import ModuleError
from axcore.module.outputs import Outputs
from axcore.module.rng import Path, fold, fold_path, format_path

if TYPE_CHECKING:
    from axcore.module.module import Module


class LayerLocation(NamedTuple):
    """The place of a module among the layers of the stack that it is a part of.

    Args:
        before: Layers of the stack before it.
        size: Layers that it is: one, or more where it is a stack itself.
        total: Layers of the full stack.
        is_stacked: Whether it is the copies of a `StackedModule`.
        is_shared: Whether it is in several places of the stack.
    """

    before: int
    size: int
    total: int
    is_stacked: bool
    is_shared: bool = False


class ModuleLocation(NamedTuple):
    """The place of a module in the tree that runs.

    Args:
        path: Its path from the root.
        steps: The steps from its parent to it.
        parent: The parent's id.
        stack: Ids of the `StackedModule` around it, outermost first.
        layer: Where its parent is a stack of layers and it is one of these: its place among them.
    """

    path: Path
    steps: Path
    parent: int
    stack: tuple[int, ...]
    layer: LayerLocation | None = None


@attrs.frozen
class LayerPosition:
    """Which layer of a stack a module is in.

    Args:
        index: The layer's number from 0, an int32 scalar; traced inside of a scan.
        count: How many layers there are.
    """

    index: Array
    count: int


@attrs.frozen
class RunningLayer:
    """The layer at work.

    Args:
        index: Its number from 0, or that of the first copy; traced inside of a scan.
        count: Layers of the stack.
        module: Id of the module that is this layer.
        stride: Layers from one copy of it to the next; 0 where it is not stacked.
        is_known: Whether `index` is its number: which copy runs, and in which place.
    """

    index: Any
    count: int
    module: int
    stride: int
    is_known: bool

    def of_copy(self, copy: Any) -> "RunningLayer":
        """Return copy number `copy` of stacked layers; this layer where it is not stacked."""
        if not self.stride:
            return self
        index = self.index + copy * self.stride
        return attrs.evolve(self, index=index, stride=0, is_known=True)


Index = dict[int, ModuleLocation]
"""Places of all modules of a tree, by the module's id."""


class MadeOnce(NamedTuple):
    """What was made of an array, and what was traced then."""

    array: Array
    trace: Any
    made: Any


class Frame:
    """One pure call. `path` is where in the full tree its state begins."""

    # Slots, as a frame and a context are made for every call of every module at each trace.
    __slots__ = (
        "_made",
        "_outputs",
        "_trace",
        "captures",
        "channels",
        "is_training",
        "key",
        "outer",
        "path",
        "state",
    )

    def __init__(
        self,
        *,
        path: Path,
        state: Any,
        key: Array | None,
        is_training: bool,
        captures: tuple[Callable[[Path], bool], ...] = (),
        channels: dict[str, Any] | None = None,
        outer: "Frame | None" = None,
    ) -> None:
        self.path = path
        self.state = state
        self.key = key
        self.is_training = is_training
        self.captures = captures
        # A copy: what a call opens must not leak into the caller's frame unless it is passed on.
        self.channels = dict(channels or {})
        self.outer = outer
        self._made: dict[tuple[str, int], MadeOnce] = {}
        self._outputs = Outputs()
        self._trace = trace_state()

    @property
    def outputs(self) -> Outputs:
        """The outputs so far, to read or to add to.

        Raises:
            ModuleError: A transformation that this frame is not the frame of is being traced, so
                that what is added could not leave it.
        """
        # A tracer that is stored in a frame from inside a transformation
        # outlives it, and jax raises its UnexpectedTracerError far from here.
        if self._trace != trace_state():
            raise ModuleError(
                "losses, summaries, updates, captures and channels cannot leave a jax "
                "transformation that a module applies by itself",
                where=format_path(self.path) or "the root",
                hint="use StackedModule or remat for modules, or return the value from the "
                "function that is transformed and add it outside",
            )
        return self._outputs

    def made_once(self, name: str, array: Array, make: Callable[[], Any]) -> Any:
        """Return what `make` returned when it was first called with this very array and name.

        Arrays are compared as Python objects; each is held, so that its id stays its own. What
        was made while another transformation was traced cannot be used, and is made again.
        """
        # The id is safe as a key because the array is held in
        # the entry: a freed one could give its id to another.
        found, trace = self._made.get((name, id(array))), trace_state()
        if found is None or found.trace != trace:
            found = self._made[name, id(array)] = MadeOnce(array, trace, make())
        return found.made

    def has_state_at(self, path: Path) -> bool:
        """Whether there is any state at a path; a module without parameters has none."""
        try:
            self.state_at(path)
        except ModuleError:
            return False
        return True

    def state_at(self, path: Path) -> Any:
        """Return the state at a path of the full tree, from this frame or one outside of it."""
        # Inside a scan a module may read one that is outside of it; its state is in an outer frame.
        if path[: len(self.path)] != self.path:
            if self.outer is None:
                raise ModuleError("the state has no such part", where=format_path(path))
            return self.outer.state_at(path)
        node = self.state
        for step in path[len(self.path) :]:
            try:
                node = node[str(step)]
            except (KeyError, TypeError):
                raise state_lacks(path) from None
        return node


def state_lacks(path: Path) -> ModuleError:
    """Return the error of a state that does not belong to the module that runs."""
    return ModuleError(
        f"the state lacks {format_path(path)!r}",
        hint="make the state with module.init(rng) of this very module",
    )


class Context:
    """One module at work inside of a frame.

    `make_key` is called only if the module or one below it uses a random key.
    """

    __slots__ = (
        "_key",
        "_key_trace",
        "_make_key",
        "_state",
        "calls",
        "frame",
        "index",
        "layer",
        "module",
        "path",
        "results",
        "streams",
    )

    def __init__(
        self,
        module: "Module",
        path: Path,
        frame: Frame,
        index: Index,
        make_key: Callable[[], Array | None],
        layer: RunningLayer | None = None,
    ) -> None:
        self.module = module
        self.path = path
        self.frame = frame
        self.index = index
        self.layer = layer
        self.calls: dict[int, int] = {}
        self.streams: dict[str, int] = {}
        self.results: dict[type, tuple[Path, str]] = {}
        self._make_key = make_key
        self._key: Array | None = None
        self._key_trace: Any = None
        self._state: Any = None

    @property
    def state(self) -> Any:
        """The state of this module and of those below it."""
        # Looked up when first read: most modules read none of
        # their own, and a stack's would be walked for nothing.
        if self._state is None:
            self._state = self.frame.state_at(self.path)
        return self._state

    @property
    def has_key(self) -> bool:
        """Whether the call was given a random key."""
        return self.frame.key is not None

    def key(self) -> Array:
        """Return this call's own key.

        Raises:
            ModuleError: The call was given none.
        """
        trace = trace_state()
        if self._key_trace != trace:  # a key made inside of a transformation stays inside of it
            self._key, self._key_trace = self._make_key(), trace
        if self._key is None:
            raise ModuleError(
                "a random key is needed but the call has none",
                where=format_path(self.path),
                hint="functional(module, state, ..., rng=jax.random.key(0))",
            )
        return self._key

    def stream(self, name: str) -> Array:
        """Return a fresh key of a named stream; every call returns another."""
        count = self.streams.get(name, 0)
        self.streams[name] = count + 1
        return fold(fold(self.key(), f"stream {name}"), count)

    def child(self, module: "Module") -> "Context":
        """Return the context of a call that this module makes to another of the tree.

        The key of a first call to an own child is folded from its steps alone. Further calls, and
        calls to modules elsewhere in the tree, get keys of their own: those are folded
        from the way there, so that it does not matter whether layers are stacked.

        Raises:
            ModuleError: The other module is not part of the tree.
        """
        place = self.index.get(id(module))
        if place is None:
            raise ModuleError(
                f"a {type(module).__qualname__} was called that is not part of the tree that runs",
                where=format_path(self.path) or "the root",
                hint="assign it in setup: self.child = cfg.child.build(...)",
            )
        # Counted by module, not by name, so the second call of a
        # shared layer gets other dropout masks than the first.
        call = self.calls.get(id(module), 0)
        self.calls[id(module)] = call + 1
        is_own = place.parent == id(self.module)

        # A function: most calls use no key, and a fold costs operations in the program.
        def make_key() -> Array | None:
            if self.frame.key is None:
                return None
            # An own child's key depends on its steps alone, so the tree
            # above may be wrapped or moved without changing its numbers.
            steps = place.steps if is_own else self._way_to(place.path)
            key = fold_path(self.key(), steps)
            return fold(fold(key, "next call"), call) if call else key

        layer = self._layer_of(module, place.layer) if is_own and place.layer else self.layer
        return Context(module, place.path, self.frame, self.index, make_key, layer)

    def _layer_of(self, module: "Module", place: LayerLocation) -> RunningLayer:
        """Return which layer a part of this stack is, counted from the outermost stack on."""
        first, count, is_known = 0, place.total, True
        outer = self.layer
        # A stack inside of a stack's layer begins to count where that layer is.
        if outer is not None and outer.module == id(self.module):
            first, count, is_known = outer.index, outer.count, outer.is_known
        return RunningLayer(
            index=first + place.before,
            count=count,
            module=id(module),
            stride=place.size if place.is_stacked else 0,
            # Of copies that run at once, or of a module
            # in several places, no single number is true.
            is_known=is_known and not place.is_stacked and not place.is_shared,
        )

    def _way_to(self, path: Path) -> Path:
        pairs = zip(self.path, path, strict=False)
        # Only what both paths share is left out, so that the
        # way is the same for stacked and for unrolled layers.
        num_shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        return ("way up", len(self.path) - num_shared, *path[num_shared:])

    def inside(self, frame: Frame, copy: Any = None) -> "Context":
        """Return this context moved into another frame, whose key is this module's own.

        Args:
            frame: The other frame.
            copy: Which copy of the module runs there, where it is stacked.
        """
        layer = self.layer if copy is None or self.layer is None else self.layer.of_copy(copy)
        return Context(self.module, self.path, frame, self.index, lambda: frame.key, layer)

    def output_name(self, name: str) -> str:
        """Return the key of an output of this module."""
        where = format_path(self.path)
        return f"{where}.{name}" if where else name


# A context variable rather than an argument: layers would otherwise pass it through every
# call. It is read while tracing only, never by compiled code, so it makes no result stale.
current: ContextVar[Context | None] = ContextVar("axcore_context", default=None)


def current_context(doing: str) -> Context:
    """Return the context of the module at work.

    Raises:
        ModuleError: No module is at work.
    """
    context = current.get()
    if context is None:
        raise ModuleError(
            f"{doing} outside of a call",
            hint="run the module as functional(module, state, *args)",
        )
    return context
