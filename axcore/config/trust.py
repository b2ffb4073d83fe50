"""What a config file may name: config classes and functions of trusted packages, and nothing else.

A class is looked up among the registered ones; where its module was not imported yet, and only
inside of a trusted package, the module is imported. Functions are looked up in packages whose
functions have no effects but their result, since building the config calls them.
"""

import contextlib
import importlib
from collections.abc import Iterable, Iterator
from typing import Any

from axcore.config.build import CallConfig
from axcore.config.define import registered_class, registered_tags
from axcore.config.paths import Path, format_path
from axcore.config.suggest import suggest_names
from axcore.config.values import is_config_class
from axcore.errors import ConfigError

_class_packages: set[str] = {"axcore"}
_function_packages: set[str] = {"optax"}


def trust_package(name: str, *, functions: bool = True) -> None:
    """Let files name config classes of a package, and its functions too.

    Args:
        name: The top-level package.
        functions: Whether `config_for` calls and function values may name its functions. Building
            a config from a file then calls them with the file's arguments.
    """
    _class_packages.add(name)
    if functions:
        _function_packages.add(name)


@contextlib.contextmanager
def trusting(packages: Iterable[str]) -> Iterator[None]:
    """Let files name config classes and functions of packages while the context lasts."""
    before = _class_packages.copy(), _function_packages.copy()
    _class_packages.update(packages)
    _function_packages.update(packages)
    try:
        yield
    finally:
        for trusted, kept in zip((_class_packages, _function_packages), before, strict=True):
            trusted.intersection_update(kept)


def is_trusted(module: str, *, functions: bool = False) -> bool:
    """Whether files may name config classes of a module, or its functions."""
    return module.partition(".")[0] in (_function_packages if functions else _class_packages)


def class_named(tag: Any, path: Path, set_in: str) -> type:
    """Return the config class of a tag.

    Raises:
        ConfigError: None is registered, nor made by importing a module of a trusted package.
    """
    if not isinstance(tag, str):
        raise ConfigError(f"type is {tag!r}; expected text", where=_where(path), set_in=set_in)
    cls = registered_class(tag)
    if cls is None and _import_from(_class_packages, tag):
        cls = registered_class(tag)
    if cls is None or issubclass(cls, CallConfig):
        raise ConfigError(
            f"no config class {tag!r} is registered",
            where=_where(path),
            set_in=set_in,
            hint=suggest_names(tag, registered_tags(), max_names=4)
            + " (import or install what defines it)",
        )
    return cls


def config_class(reference: str) -> type:
    """Return the config class that `module:Class` names, of itself or of the class it describes.

    It is looked for in modules of trusted packages, re-exports included.

    Raises:
        ConfigError: There is none.
    """
    found: Any = None
    if reference.count(":") == 1 and _import_from(_class_packages, reference):
        found = _attribute(*reference.split(":"))
    found = getattr(found, "Config", found)
    if not is_config_class(found):
        raise ConfigError(
            f"{reference!r} names no config class",
            hint="write package.module:Class of axcore, or of a plugin that is installed",
        )
    cls: type = found
    return cls


def function_named(reference: Any, path: Path, set_in: str) -> Any:
    """Return the function or class that `module:name` names.

    Raises:
        ConfigError: Files may not name it, or it does not exist.
    """
    if isinstance(reference, str) and reference.count(":") == 1:
        module, name = reference.split(":")
        if _import_from(_function_packages, reference):
            found = _attribute(module, name)
            if callable(found):
                return found
    raise ConfigError(
        f"{reference!r} is not a function that a config file may name",
        where=_where(path),
        set_in=set_in,
        hint=f"files may name functions of {', '.join(sorted(_function_packages))}; "
        "allow another package with trust_package",
    )


def _attribute(module: str, name: str) -> Any:
    """Return what is in a module, refusing to reach other packages through its imports."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = vars(found).get(part) if not part.startswith("_") else None
        home = getattr(found, "__module__", None)
        if not isinstance(home, str) or home.split(".")[0] != module.split(".")[0]:
            return None
        if not isinstance(found, type) and part is not name.split(".")[-1]:
            return None
    return found


def _import_from(packages: set[str], reference: str) -> bool:
    """Imports the module of a reference where its package is trusted; says whether it did."""
    module = reference.split(":")[0]
    parts = module.split(".")
    is_name = all(part.isidentifier() and not part.startswith("__") for part in parts)
    if parts[0] not in packages or not is_name:
        return False
    try:
        importlib.import_module(module)
    except ImportError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            return False
        raise ConfigError(
            f"{module} cannot be imported: {error}", hint="install what it needs"
        ) from error
    return True


def _where(path: Path) -> str:
    return format_path(path) or "the root"
