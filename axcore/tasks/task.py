"""`Task`: an objective around a model, and what it may have next to that.

`FrozenModel` is a second model, read and never trained; `TrainedModule` one that is trained too.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import jax
from jaxtyping import Array

from axcore.config import REQUIRED, Configurable, config
from axcore.errors import ModuleError
from axcore.interop import WeightSource
from axcore.module import BatchSpec, ModelFlops, Module, Outputs, ParamSpec, functional
from axcore.module.context import current_context


class Task(Module):
    """An objective around a model: `forward(batch)` adds losses.

    The model has the task's own path, so that its state, its random keys and the names of its own
    losses are those that it has alone: checkpoints, adapters and exports know of no task.

    A task has further models as attributes: see `FrozenModel` and `TrainedModule`.
    """

    wraps = "model"

    @config
    class Config(Module.Config["Task"]):
        """Describes a `Task`.

        Args:
            model: Filled by the trainer.
        """

        model: Module.Config = REQUIRED

    def setup(self, cfg: Config) -> None:
        """Build the model."""
        self.model = cfg.model.build()

    def flops_per_unit(self, batch: BatchSpec) -> ModelFlops | None:
        """Return what a unit costs the model, forward and backward."""
        return self.model.flops_per_unit(batch)

    def kept_specs(self, specs: dict[str, Any]) -> dict[str, Any]:
        """Return the specs of the task's further models, by name.

        Raises:
            ModuleError: The model has arrays of that name.
        """
        found = second_models(self)
        if taken := sorted(found.keys() & specs.keys()):
            raise ModuleError(
                f"{type(self).__qualname__}.{taken[0]} is a {type(found[taken[0]]).__qualname__}, "
                f"but the model has arrays under {taken[0]!r} too",
                hint="give it another attribute",
            )
        return {name: one.specs(name) for name, one in found.items()}

    def kept_state(self, state: dict[str, Any], specs: dict[str, Any]) -> dict[str, Any]:
        """Return first weights of the further models; those of frozen ones until they are read."""
        return {name: one.random_state() for name, one in second_models(self).items()}

    def kept_sources(self) -> Mapping[str, Callable[[Any], Any]]:
        """Return what reads the weights of each frozen model."""
        found = second_models(self).items()
        return {name: one.read for name, one in found if isinstance(one, FrozenModel)}


class FrozenModel(Configurable):
    """A second model next to the one that is trained, with weights of its own that never change.

    A task assigns it in `setup`, `self.teacher = cfg.teacher.build()`, and calls it in `forward`,
    `self.teacher("logits", tokens, info)`. Its weights are frozen leaves of the run's state, under
    the attribute's name: they are split over the mesh by the trainer's rules, saved in checkpoints
    and restored from them. Nothing that reads the run later sees them.
    """

    @config
    class Config(Configurable.Config["FrozenModel"]):
        """Describes a `FrozenModel`.

        Args:
            model: The model; need not be like the one that is trained.
            init_from: Its weights. They are read when a run begins; one that resumes has them in
                its checkpoint.
        """

        model: Module.Config = REQUIRED
        init_from: WeightSource.Config = REQUIRED

    def __init__(self, cfg: Config) -> None:
        """Build the model, and what reads its weights; reads nothing."""
        super().__init__(cfg)
        self.model: Module = cfg.model.build()
        self._source: Any = cfg.init_from.build()
        self._model_config = cfg.model

    def __call__(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return what a method of the model returns, outside of training; no gradient.

        Losses, summaries and updates of it are dropped.

        Args:
            method: `forward`, or a method marked with `@entry`.
            *args: The method's own arguments.
            **kwargs: Its own keyword arguments.

        Raises:
            ModuleError: It is not an attribute of the task that runs.
        """
        context = current_context("calling a FrozenModel")
        state = jax.lax.stop_gradient(context.state[_name_of(self, context.module)])
        result, _ = functional(self.model, state, *args, method=method, **kwargs)
        return jax.lax.stop_gradient(result)

    def specs(self, name: str) -> dict[str, Any]:
        """Return the specs of its weights under a name of the state, marked as frozen."""

        def frozen(spec: ParamSpec) -> ParamSpec:
            # A buffer that its gradient overwrites would be, by that of nothing.
            return attrs.evolve(
                spec, path=(name, *spec.path), is_frozen=True, is_overwritten_by_gradient=False
            )

        specs: dict[str, Any] = jax.tree.map(frozen, self.model.param_specs(), is_leaf=_is_spec)
        return specs

    def random_state(self) -> dict[str, Array]:
        """Return weights of these shapes, for the programs that are traced before any are read."""
        state: dict[str, Array] = self.model.init(0)
        return state

    def read(self, wanted: Any) -> Any:
        """Return its weights.

        Args:
            wanted: Their shapes, dtypes and shardings.

        Raises:
            ConfigError: They are another model's.
            CheckpointError: They cannot be read.
        """
        return self._source.plan(self._model_config).read(wanted)


class TrainedModule:
    """A second module next to the model, which is trained with it: a critic, or a head of the task.

    A task assigns it in `setup`, `self.critic = TrainedModule(cfg.critic.build(dim=8))`, and calls
    it in `forward`, `self.critic("forward", x)`. Its parameters are trained leaves of the run's
    state, under the attribute's name. They have the optimizer, the mesh and the checkpoints of all
    others, and nothing that reads the run later sees them.
    """

    def __init__(self, module: Module) -> None:
        self.module = module

    def __call__(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return what a method of the module returns; its losses count as the task's.

        Args:
            method: `forward`, or a method marked with `@entry`.
            *args: The method's own arguments.
            **kwargs: Its own keyword arguments.

        Raises:
            ModuleError: It is not an attribute of the task that runs.
        """
        context = current_context("calling a TrainedModule")
        name, frame = _name_of(self, context.module), context.frame
        result, outputs = functional(
            self.module,
            context.state[name],
            *args,
            method=method,
            rng=context.key() if context.has_key else None,
            training=frame.is_training,
            **kwargs,
        )
        frame.outputs.absorb(
            Outputs(
                losses={f"{name}.{key}": one for key, one in outputs.losses.items()},
                summaries={f"{name}.{key}": one for key, one in outputs.summaries.items()},
                updates={(name, *path): one for path, one in outputs.updates.items()},
            )
        )
        return result

    def specs(self, name: str) -> dict[str, Any]:
        """Return the specs of its parameters under a name of the state."""

        def under(spec: ParamSpec) -> ParamSpec:
            return attrs.evolve(spec, path=(name, *spec.path))

        specs: dict[str, Any] = jax.tree.map(under, self.module.param_specs(), is_leaf=_is_spec)
        return specs

    def random_state(self) -> dict[str, Array]:
        """Return its first parameters, the same in every run."""
        state: dict[str, Array] = self.module.init(0)
        return state


def second_models(task: Module) -> dict[str, FrozenModel | TrainedModule]:
    """Return the further models that a task has as attributes, by name."""
    kinds = (FrozenModel, TrainedModule)
    return {name: one for name, one in vars(task).items() if isinstance(one, kinds)}


def _name_of(model: FrozenModel | TrainedModule, task: Module) -> str:
    """Return the attribute of a task that a model is.

    Raises:
        ModuleError: It is none of them.
    """
    names = [name for name, one in second_models(task).items() if one is model]
    if not names:
        raise ModuleError(
            f"a {type(model).__qualname__} was called that is not an attribute of the "
            f"{type(task).__qualname__} that runs",
            hint="assign it in the task's setup: self.teacher = cfg.teacher.build()",
        )
    return names[0]


def _is_spec(leaf: Any) -> bool:
    return isinstance(leaf, ParamSpec)
