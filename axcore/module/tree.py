"""The tree of modules: where each is, so that a call finds its state, key and name."""

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from axcore.errors import ModuleError
from axcore.module.context import Index, LayerLocation, ModuleLocation
from axcore.module.rng import Path, format_path
from axcore.module.transforms import StackedModule

if TYPE_CHECKING:
    from axcore.module.module import Module


@runtime_checkable
class ModuleNode(Protocol):
    """What a module can have as a child: a module, or a `StackedModule` of one."""

    def specs_at(self, path: Path, seen: set[int]) -> dict[str, Any]:
        """Return the specs at a path of the tree, but for modules in `seen`, which it adds to."""


def index_of(module: "Module") -> Index:
    """Return the places of all modules of a tree; a shared one is where it comes first.

    Raises:
        ModuleError: A module in a `StackedModule` is shared with a module outside of it.
    """
    # Kept with the module: the tree never changes after
    # setup, and each call of `functional` asks for it.
    index: Index | None = module.__dict__.get("_index")
    if index is None:
        index = {id(module): ModuleLocation((), (), 0, ())}
        _add_children(module, (), (), index)
        module.__dict__["_index"] = index
    return index


def unwrapped(child: Any) -> "Module":
    """Return the module of a child, which a `StackedModule` may wrap."""
    inner: Module = child.module if isinstance(child, StackedModule) else child
    return inner


def num_layers(module: "Module") -> int:
    """Return how many layers a module is: one, or those of a stack and of the stacks in it."""
    parts = [child for steps, child in module.children() if _is_layer_of(module, steps)]
    return sum(_num_copies(part) * num_layers(unwrapped(part)) for part in parts) or 1


def _is_layer_of(module: "Module", steps: Path) -> bool:
    return module.layers_in is not None and steps[:1] == (module.layers_in,)


def _num_copies(child: Any) -> int:
    return child.count if isinstance(child, StackedModule) else 1


def _add_children(module: "Module", path: Path, stack: tuple[int, ...], index: Index) -> None:
    num_before, total = 0, num_layers(module)
    for steps, child in module.children():
        inner, here = unwrapped(child), (*path, *steps)
        is_stacked = isinstance(child, StackedModule)
        around = (*stack, id(child)) if is_stacked else stack
        layer = None
        if _is_layer_of(module, steps):
            layer = LayerLocation(num_before, num_layers(inner), total, is_stacked)
            num_before += _num_copies(child) * layer.size
        place = index.get(id(inner))
        # By identity: a shared module is one object in several
        # places, and has one place for its parameters, the first.
        if place is None:
            index[id(inner)] = ModuleLocation(here, steps, id(module), around, layer)
            _add_children(inner, here, around, index)
        elif _is_same_stack(child, place.stack, around):
            if layer is not None:
                shared = layer._replace(is_shared=True)
                index[id(inner)] = place._replace(layer=shared)
        else:
            raise ModuleError(
                f"a {type(inner).__qualname__} is shared between {format_path(place.path)} and "
                f"{format_path(here)}, but one of them stacks copies of its state",
                where=format_path(here),
                hint="build a separate module for the StackedModule",
            )


def _is_same_stack(child: Any, first: tuple[int, ...], around: tuple[int, ...]) -> bool:
    """Whether a shared module's state, stacked as at its first place, fits this place too.

    A module that is not stacked may be used inside of a `StackedModule`, by each copy alike.
    """
    return first == around if isinstance(child, StackedModule) else first == around[: len(first)]
