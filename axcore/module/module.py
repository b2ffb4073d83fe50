"""`Module`: declares parameters and children in `setup`, reads imperatively, stays pure."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Protocol, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array
from typing_extensions import TypeVar

from axcore.config import Configurable, Resumable, config
from axcore.errors import ModuleError
from axcore.module import invoke
from axcore.module.batch_spec import BatchSpec, ModelFlops
from axcore.module.context import Context, LayerPosition, current_context
from axcore.module.outputs import Loss, RowMeasure, unused
from axcore.module.param import ROOT_DTYPES, DTypes, ParamDeclaration, param_spec_of, sample_params
from axcore.module.remat import Remat
from axcore.module.rng import Path, as_key, format_path
from axcore.module.stacked_module import ModuleNode, index_of, unwrapped
from axcore.module.summary import summary_html

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

# Inherited while `setup` runs, so that a child need not be given what every parent has.
_inherited: ContextVar[DTypes] = ContextVar("axcore_dtypes", default=ROOT_DTYPES)


def entry(method: F) -> F:
    """Mark a method, in addition to `forward`, as an entry: it runs in a context of its own."""

    @functools.wraps(method)
    def wrapper(self: "Module", *args: Any, **kwargs: Any) -> Any:
        return invoke.invoke(self, method, args, kwargs)

    # The plain function, which `functional` runs without a second context around it.
    wrapper.__axcore_entry__ = method  # type: ignore[attr-defined]
    return wrapper  # type: ignore[return-value]


BuiltModule_co = TypeVar("BuiltModule_co", covariant=True, bound="Module", default="Module")


class _Forwards(Protocol[P, R_co]):
    """A module, by the arguments and the result of its `forward`."""

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class Module(Configurable):
    """A layer, a model, or anything else that has parameters and computes.

    `setup(cfg)` declares parameters (`self.weight = Param(...)`) and children
    (`self.ffn = cfg.ffn.build(...)`, tuples and mappings of children too) by assignment; `forward`
    computes. A module contains no arrays: `init` makes the state, `functional` runs the module on
    it.

    Attributes:
        wraps: Name of the child, if any, that has this module's own path: its state, names and
            random keys are those that it has by itself.
        layers_in: Name of the child, if any, that holds layers which run one after the other, a
            `StackedModule` or a tuple: where `layer_position` counts.
        dtypes: Those of its config; what that leaves out is as in the module around it.
    """

    wraps: ClassVar[str | None] = None
    layers_in: ClassVar[str | None] = None

    dtypes: DTypes
    _params: dict[str, ParamDeclaration]
    _children: dict[str, Any]
    _is_set_up: bool

    @config
    class Config(Configurable.Config[BuiltModule_co]):
        """What every module's config has.

        Args:
            dtypes: Stored, compute and output dtype, inherited from the parent where None.
            remat: What the backward pass keeps of this module's forward pass; None keeps all.
        """

        dtypes: DTypes = DTypes()
        remat: Resumable[Remat | None] = None

        @property
        def plain_parts(self) -> tuple[str, ...]:
            """The fields whose linear layers stay as they are where a model serves."""
            return ()

        @property
        def is_new_in_fine_tuning(self) -> bool:
            """Whether adapters leave it out and it is trained in full, as it begins at random."""
            return False

    def __init__(self, cfg: Any) -> None:
        own: dict[str, Any] = {"_params": {}, "_children": {}, "_is_set_up": False}
        # Past `__setattr__`, which needs these three to exist.
        self.__dict__.update(own)
        self.__dict__["dtypes"] = cfg.dtypes.inheriting(_inherited.get())
        self.__dict__["config"] = cfg
        token = _inherited.set(self.dtypes)
        try:
            self.setup(cfg)
        finally:
            _inherited.reset(token)
        # From here on a module is a constant: jitted functions
        # close over it, and jax would not notice a change.
        self.__dict__["_is_set_up"] = True

    def setup(self, cfg: Any) -> None:
        """Declare parameters and children."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute; what `self(...)` runs."""
        raise NotImplementedError(f"{type(self).__qualname__} has no forward")

    def __call__(self: "_Forwards[P, R_co]", *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run `forward` in a context of its own."""
        module = cast("Module", self)
        result: R_co = invoke.invoke(module, type(module).forward, args, kwargs)
        return result

    # -- Inside a method ---------------------------------------------------------------------

    @property
    def training(self) -> bool:
        """Whether the call is a training step."""
        return current_context("reading self.training").frame.is_training

    @property
    def has_rng(self) -> bool:
        """Whether the call was given a random key."""
        return current_context("reading self.has_rng").has_key

    def layer_position(self) -> LayerPosition:
        """Return which layer this module is, or is a part of, and how many the stack has.

        Layers are counted through stacks of stacks, from the outermost on, and the same whether
        they are unrolled, scanned or in a pipeline. The index is an array everywhere, so that code
        that works in one of them works in all.

        Raises:
            ModuleError: No stack is around this module, or it cannot be said which of its layers
                runs.
        """
        layer = self._context("self.layer_position").layer
        if layer is None:
            raise ModuleError(
                f"{type(self).__qualname__} asks for its layer_position outside of layers",
                hint="put it into a Stack, ScannedLayers, Sequence or Pipeline; a stack class of "
                'your own says layers_in = "layer", the name of the child that contains its layers',
            )
        if not layer.is_known:
            raise ModuleError(
                f"{type(self).__qualname__} asks for its layer_position in layers that run at "
                "once, or in one that is several layers of a stack",
                hint="build a module for each layer, or run copies by StackedModule.scan",
            )
        return LayerPosition(jnp.asarray(layer.index, jnp.int32), layer.count)

    def rng(self, stream: str) -> Array:
        """Return a fresh random key of a named stream of this module."""
        return self._context("self.rng").stream(stream)

    def add_loss(self, name: str, value: Any, weight: Any = 1.0, *, scale: float = 1.0) -> None:
        """Add a loss; it reaches the caller of `functional` from any depth.

        Args:
            name: Its name below the module's path.
            value: Sum of the loss over `weight` items, a scalar.
            weight: How many items (tokens, say) the sum is over.
            scale: Coefficient: the loss adds `scale * value / weight` to the total.
        """
        self._add(name, Loss(_scalar(value, name), _scalar(weight, name), float(scale)))

    def add_regularizer(self, name: str, value: Any, weight: Any = 1.0, *, scale: float) -> None:
        """Add what is minimised with the loss and reported apart: it is in no metric `loss`.

        Args:
            name: Its name below the module's path.
            value: Its sum over `weight` items, a scalar.
            weight: How many items the sum is over.
            scale: Coefficient, as of a loss.
        """
        sums = _scalar(value, name), _scalar(weight, name)
        self._add(name, Loss(*sums, float(scale), is_regularizer=True))

    def _add(self, name: str, loss: Loss) -> None:
        context = self._context("self.add_loss")
        losses = context.frame.outputs.losses
        losses[unused(context.output_name(name), losses)] = loss

    def add_measure(self, name: str, value: Any, weight: Any = 1.0) -> None:
        """Add what is reported as losses are, in evaluation too, and is not minimised.

        Args:
            name: Its name below the module's path.
            value: Its sum over `weight` items, a scalar.
            weight: How many items the sum is over.
        """
        # No gradient, so a measure costs nothing in the backward pass.
        self.add_loss(name, jax.lax.stop_gradient(value), weight, scale=0.0)

    def add_summary(self, name: str, value: Any) -> None:
        """Reports a value under the module's path; the trainer logs it."""
        context = self._context("self.add_summary")
        summaries = context.frame.outputs.summaries
        summaries[unused(context.output_name(name), summaries)] = jnp.asarray(value)

    def update(self, name: str, value: Array) -> None:
        """Set the next value of a buffer; reading it in this call still gives the present one.

        No gradient goes through it, so that the backward pass keeps nothing of how it was made.

        Raises:
            ModuleError: `name` is not a buffer of this module.
        """
        param = self._params.get(name)
        if param is None or not param.is_buffer:
            buffers = [key for key, item in self._params.items() if item.is_buffer]
            raise ModuleError(
                f"{type(self).__qualname__} has no buffer {name!r}; it has {buffers}",
                hint="declare it: Param(..., is_buffer=True)",
            )
        context = self._context("self.update")
        path, held = (*context.path, name), invoke.array_of(self, name)
        # A changed shape or dtype would make the state of the next
        # step another one: compiled again, or refused by donation.
        if jnp.shape(value) != held.shape or value.dtype != held.dtype:
            raise ModuleError(
                f"the update has shape {jnp.shape(value)} and dtype {value.dtype}; "
                f"the buffer has {held.shape} and {held.dtype}",
                where=format_path(path),
                hint=f"sum over the batch, and end with .astype({str(held.dtype)!r})",
            )
        context.frame.outputs.updates[path] = jax.lax.stop_gradient(value)

    def capture(self, name: str, value: Any) -> None:
        """Hand a value to the caller where `functional(..., capture=...)` asks for its path."""
        context = self._context("self.capture")
        invoke.capture(context, (*context.path, name), value)

    def set_shared(self, channel: str, value: Any) -> None:
        """Put a value into a named channel, for modules that run later to receive.

        Raises:
            ModuleError: The value contains something else than arrays and numbers.
        """
        invoke.check_arrays(value, f"channel {channel!r}")
        frame = self._context("self.set_shared").frame
        # Read for its check alone.
        frame.outputs  # noqa: B018 - raises where the value could not leave a transformation
        frame.channels[channel] = value

    @contextlib.contextmanager
    def with_shared(self, channel: str, value: Any) -> Iterator[None]:
        """Send to the modules that run inside of a `with` block, and to nobody after it."""
        channels = self._context("self.with_shared").frame.channels
        # Whether it was open and not whether it was None, as None is a value that can be sent.
        was_open, before = channel in channels, channels.get(channel)
        self.set_shared(channel, value)
        try:
            yield
        finally:
            if was_open:
                channels[channel] = before
            else:
                channels.pop(channel)

    def get_shared(self, channel: str, default: Any = None) -> Any:
        """Return what a module that ran earlier sent last, or `default` where none did."""
        return self._context("self.get_shared").frame.channels.get(channel, default)

    def made_once(self, name: str, array: Array, make: Callable[[], Any]) -> Any:
        """Return what the first module of this call that read this very array made of it.

        That is `make()` where none did. So sibling modules, such as projections of
        one input, share work that is the same for all of them. Where a transformation is between
        two of them each makes its own: a module that is rematerialised by itself, for example.

        Args:
            name: Of what is made; whoever uses it makes the same.
            array: What it is made of.
            make: Makes it.
        """
        return self._context("self.made_once").frame.made_once(name, array, make)

    def _context(self, doing: str) -> Context:
        context = current_context(doing)
        if context.module is not self:
            raise ModuleError(
                f"{doing} of a {type(self).__qualname__} while a "
                f"{type(context.module).__qualname__} runs",
                hint="mark the method with @entry, so that it runs in its module's own context",
            )
        return context

    if not TYPE_CHECKING:  # which takes any name for an attribute
        # Reached for parameters only, as these are not in
        # `__dict__`: their arrays are in the state that runs.
        def __getattr__(self, name: str) -> Any:
            param = self.__dict__.get("_params", {}).get(name)
            if param is None:
                raise AttributeError(f"{type(self).__qualname__} has no attribute {name!r}")
            array = invoke.array_of(self, name)
            # Here and not at the declaration, so that the stored array keeps its precision.
            if param.is_cast and jnp.issubdtype(array.dtype, jnp.floating):
                return array.astype(self.dtypes.compute)
            return array

    # -- Declaring ---------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_set_up:
            raise ModuleError(
                f"{type(self).__qualname__}.{name} is set after setup; modules contain no state",
                hint="declare it in setup, or keep it as a buffer: self.update(name, value)",
            )
        if isinstance(value, ParamDeclaration):
            self._check_name(name)
            self._params[name] = value
            return
        if _child_items((name,), value):
            self._check_name(name)
            value = tuple(value) if isinstance(value, list) else value
            self._children[name] = value
        self.__dict__[name] = value

    def _check_name(self, name: str) -> None:
        # A parameter called `forward` would hide the method.
        if hasattr(type(self), name):
            raise ModuleError(
                f"{type(self).__qualname__} cannot name a parameter or child {name!r}: "
                "the class has an attribute of that name",
                hint="choose another name",
            )
        if name in self.__dict__ or name in self._params:
            raise ModuleError(
                f"{type(self).__qualname__}.{name} is declared twice", hint="choose another name"
            )

    # -- As the model that a trainer trains --------------------------------------------------

    def check_batch(self, batch: BatchSpec) -> None:
        """Check that this model can be trained on such batches; raises what explains it if not."""

    def flops_per_unit(self, batch: BatchSpec) -> ModelFlops | None:
        """Return what a unit of such batches costs, forward and backward; None if not known."""
        return None

    watched_metrics: tuple[str, ...] = ()
    """Metrics besides the loss that progress lines show, where they are there."""

    def metric_units(self) -> Mapping[str, str]:
        """Return the unit of `loss`, of each `loss/NAME` and of each measure, as people read it.

        A name that is left out is shown without a unit. A perplexity is shown of no other loss
        than one in `NATS_A_TOKEN`.
        """
        return {}

    def row_measure(self) -> RowMeasure | None:
        """Return what evaluations measure over all of their rows together; nothing here."""
        return None

    def kept_specs(self, specs: dict[str, Any]) -> dict[str, Any]:
        """Return specs of what a trainer keeps in the state in addition; none here.

        Args:
            specs: Of the parameters, those that are not trained marked as frozen.
        """
        return {}

    def kept_state(self, state: dict[str, Any], specs: dict[str, Any]) -> dict[str, Any]:
        """Return the first values of those specs, given the first state of the parameters."""
        return {}

    def kept_sources(self) -> Mapping[str, Callable[[Any], Any]]:
        """Return what reads some of those first values from elsewhere, by their key in the state.

        Each is a function from a description of the arrays (shapes, dtypes, shardings) to them.
        """
        return {}

    # -- The tree ----------------------------------------------------------------------------

    def children(self) -> Iterator[tuple[Path, Any]]:
        """Yield the children with their steps below this module, in order of declaration."""
        for name, value in self._children.items():
            yield from _child_items(() if name == self.wraps else (name,), value)

    def param_specs(self) -> dict[str, Any]:
        """Return a nested dict of `ParamSpec`, shaped as the state; makes no array."""
        index_of(self)  # raises where modules are shared in a way that no state can hold
        return self.specs_at((), {id(self)})

    def specs_at(self, path: Path, seen: set[int]) -> dict[str, Any]:
        """Return the specs at a path of the tree, but for modules in `seen`, which it adds to."""
        specs: dict[str, Any] = {}
        for name, param in self._params.items():
            specs[name] = param_spec_of(param, (*path, name), self.dtypes)
        for steps, child in self.children():
            # A shared module's parameters exist once, where it comes first.
            if id(unwrapped(child)) in seen:
                continue
            seen.add(id(unwrapped(child)))
            below = child.specs_at((*path, *steps), seen)
            if below and steps:
                # Nothing is put for a module without parameters: an empty dict is a
                # tree without leaves, and the states of two models would differ by it.
                _put(specs, steps, below)
            else:
                specs.update(below)
        return specs

    def init(self, rng: Array | int) -> dict[str, Any]:
        """Return a first state: a nested dict of arrays.

        Args:
            rng: A random key or a seed. Every parameter's key is folded from its path, so what
                is next to it never changes it.
        """
        state: dict[str, Any] = sample_params(self.param_specs(), as_key(rng))
        return state

    def __repr__(self) -> str:
        return f"<{type(self).__qualname__} {self.config!r}>"

    def _repr_html_(self) -> str:
        return summary_html(self)


def _child_items(steps: Path, value: Any) -> list[tuple[Path, Any]]:
    """Return the modules in a value, with their steps; tuples and mappings may nest."""
    if isinstance(value, ModuleNode):
        return [(steps, value)]
    items: list[tuple[Path, Any]] = []
    if isinstance(value, (tuple, list)):
        items = [((*steps, i), item) for i, item in enumerate(value)]
    elif isinstance(value, Mapping):
        items = [((*steps, str(key)), item) for key, item in value.items()]
    found = [_child_items(inner, item) for inner, item in items]
    # Half of such a tuple would be a child and half a
    # setting; nobody could say which paths there are.
    if any(found) and not all(found):
        raise ModuleError(
            f"{format_path(steps)} mixes modules with other values",
            hint="keep modules in a tuple or mapping of their own",
        )
    return [child for below in found for child in below]


def _put(specs: dict[str, Any], steps: Path, below: dict[str, Any]) -> None:
    for step in steps[:-1]:
        specs = specs.setdefault(str(step), {})
    specs[str(steps[-1])] = below


def _scalar(value: Any, name: str) -> Array:
    array = jnp.asarray(value, jnp.float32) if isinstance(value, (int, float)) else value
    if jnp.shape(array) != ():
        raise ModuleError(
            f"loss {name!r} has shape {jnp.shape(array)}; a loss and its weight are scalars",
            hint="sum over the items, and give their number as the weight",
        )
    # float32 always: sums over a batch in bfloat16 are off by full tokens.
    return jnp.asarray(array).astype(jnp.float32)
