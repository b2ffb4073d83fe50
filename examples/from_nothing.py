"""A config system and a module system, from nothing, in under 150 lines.

Every piece is here, with the reason why. Run it: it swaps a layer in a model that does not know.
"""

import contextvars
import dataclasses
import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# 1. A config is a frozen dataclass: what nobody can change, any number of models can share. A field
#    that holds another config is a slot: so a config is a tree, and the tree is the model.
config = dataclasses.dataclass(frozen=True, kw_only=True)
REQUIRED: Any = object()  # not None: None may mean something, and must not pass for "not said yet"


@config
class Config:
    def build(self, **filled: Any) -> Any:
        # 2. The parent owns the wiring: it alone knows the width that its children work at. What it
        #    fills in is all that a slot demands, and that is why any other layer fits there.
        taken = [n for n, value in filled.items() if getattr(self, n) not in (REQUIRED, value)]
        cfg = dataclasses.replace(self, **filled)
        missing = [name for name, value in vars(cfg).items() if value is REQUIRED]
        if taken or missing:
            raise ValueError(f"{type(cfg).__qualname__}: already set {taken}, missing {missing}")
        return type(cfg).owner(cfg)  # type: ignore[attr-defined]


def replace(cfg: Any, target: type, new: Any) -> Any:
    # 3. The promise: a feature costs a class and a call of this, however many models there are.
    if not isinstance(cfg, Config):
        return cfg
    below = {name: replace(value, target, new) for name, value in vars(cfg).items()}
    cfg = dataclasses.replace(cfg, **below)
    return new(cfg) if isinstance(cfg, target) else cfg


# 4. Modules read like imperative Python but must be pure for jax. A context, set while a call runs,
#    has the state of the module at work and gathers what modules add; each thread has its own.
class Context(NamedTuple):
    module: Any
    state: Any
    key: Any
    losses: list[Any]

    def run(self, args: Any) -> Any:
        return contextvars.copy_context().run(
            lambda: _current.set(self) and self.module.forward(*args)
        )


_current: contextvars.ContextVar[Context] = contextvars.ContextVar("context")


def fold(key: Any, name: str) -> Any:
    # 5. Folded by name, not split by position: a module's siblings change none of its keys.
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


class Module:
    def __init_subclass__(cls) -> None:
        cls.Config.owner = cls  # type: ignore[attr-defined]

    def __init__(self, cfg: Any) -> None:
        # 6. `setup` declares shapes, never arrays: a model of any size can be built anywhere.
        self.__dict__.update(config=cfg, shapes={}, children={})
        self.setup(cfg)  # type: ignore[attr-defined]

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Module):
            self.__dict__[name] = self.children[name] = value
        else:
            self.shapes[name] = value

    def init(self, key: Any) -> dict[str, Any]:
        # 7. The state is a plain tree, which every jax transformation and optimizer understands.
        state = {name: child.init(fold(key, name)) for name, child in self.children.items()}
        for name, shape in self.shapes.items():
            state[name] = jax.random.normal(fold(key, name), shape) / shape[0] ** 0.5
        return state

    def __getattr__(self, name: str) -> Any:
        return _current.get().state[name]

    def __call__(self, *args: Any) -> Any:
        # 8. A call of a child narrows the context to the part that the child's name leads to.
        above = _current.get()
        name = next(name for name, child in above.module.children.items() if child is self)
        return Context(self, above.state[name], fold(above.key, name), above.losses).run(args)


def functional(module: Module, state: Any, *args: Any, key: Any) -> tuple[Any, list[Any]]:
    # 9. Losses come out in addition to the result: no signature in between changes when a layer
    # adds one.
    losses: list[Any] = []
    return Context(module, state, key, losses).run(args), losses


class Linear(Module):
    @config
    class Config(Config):
        dim: int = REQUIRED

    def setup(self, cfg: Any) -> None:
        self.weight = (cfg.dim, cfg.dim)

    def forward(self, x: Any) -> Any:
        return x @ self.weight


class Net(Module):
    @config
    class Config(Config):
        dim: int = 8
        linear: Config = Linear.Config()

    def setup(self, cfg: Any) -> None:
        self.first, self.second = (cfg.linear.build(dim=cfg.dim) for _ in range(2))

    def forward(self, x: Any) -> Any:
        return self.second(jnp.tanh(self.first(x)))


# 10. What it buys: `replace` brings noise and a penalty into every layer; `Net` knows neither.
class Noisy(Linear):
    Config = config(type("Config", (Linear.Config,), {}))  # so that it differs from Linear's

    def forward(self, x: Any) -> Any:
        _current.get().losses.append(1e-4 * jnp.sum(self.weight**2))
        return x @ self.weight + 0.01 * jax.random.normal(_current.get().key, x.shape)


if __name__ == "__main__":
    net = replace(Net.Config(), Linear.Config, lambda old: Noisy.Config()).build()
    x, key = jnp.linspace(-1, 1, 32)[:, None] * jnp.ones(8), jax.random.key(0)

    def loss(state: Any, key: Any) -> Any:
        y, losses = functional(net, state, x, key=key)
        return jnp.mean((y - jnp.sin(x)) ** 2) + sum(losses)

    state, step = net.init(key), jax.jit(jax.grad(loss))
    print("loss before", loss(state, key))
    for i in range(200):
        state = jax.tree.map(lambda w, g: w - 0.3 * g, state, step(state, fold(key, str(i))))
    print("loss after ", loss(state, key))
