"""`start_model_api`: a model that a plugin's `ModelApi` serves, in the place of an engine."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import jax

from axcore.config.json_files import read_json_file
from axcore.data import Tokenizer
from axcore.distributed import process_count
from axcore.errors import AxcoreError, ConfigError, PluginError
from axcore.interop import PretrainedCheckpoint, from_hugging_face
from axcore.plugins import ModelApi, plugin_host
from axcore.runs import Run, load_run
from axcore.runs.export import checkpoint_tokenizer
from axcore.runs.opening import is_published
from axcore.serving.config import Limits, ServerConfig
from axcore.serving.endpoint import AnyEndpoint, Endpoint
from axcore.serving.served import ServedApi


@attrs.frozen(kw_only=True)
class ApiModel:
    """A model for which a plugin has endpoints.

    Args:
        folder: The run directory, or the folder of the pretrained checkpoint.
        model: The model.
        state: Its state, on the device.
        trainer: Of the run; None of a pretrained checkpoint.
        tokenizer: Of a pretrained checkpoint; of a run, `trainer.data` has it.
        limits: What one request may ask.
    """

    folder: Path
    model: Any
    state: Any
    trainer: Any | None = None
    tokenizer: Tokenizer | None = None
    limits: Limits = Limits()  # noqa: RUF009 - a frozen value


def find_model_api(directory: Path | str) -> ModelApi | None:
    """Return the record of a plugin that serves the model of a directory; None without.

    Raises:
        PluginError: Several do.
    """
    model = _model_type(Path(directory).expanduser())
    found = [one for one in plugin_host().records(ModelApi) if model in one.models]
    if len(found) > 1:
        names = " and ".join(f"{one.name} of {one.plugin}" for one in found)
        raise PluginError(
            f"a {model} is served by {names}",
            hint=f"block all plugins but one, as AXCORE_BLOCK={found[-1].plugin}",
        )
    return found[0] if found else None


def _model_type(folder: Path) -> str | None:
    """Return the type of the config of a directory's model; None where that is not known."""
    try:
        if is_published(folder):
            cls = type(PretrainedCheckpoint(folder, allow_unknown_fields=True).config)
            return f"{cls.__module__}:{cls.__qualname__}"
        found: str = read_json_file(folder / "config.json")["model"]["type"]
    except (AxcoreError, OSError, ValueError, LookupError, TypeError):
        return None  # opening it says what is wrong
    return found


def start_model_api(
    api: ModelApi,
    directory: Path | str,
    cfg: ServerConfig,
    *,
    names: Sequence[str] = (),
    step: int | None = None,
    trust_code: bool = False,
    allow_unknown_fields: bool = False,
    when_placed: Callable[[], None] = lambda: None,
) -> tuple[ServedApi, Run | None]:
    """Return a model that answers, its programs compiled, and the run that newer steps come from.

    Args:
        api: What `find_model_api` returned.
        directory: A run, or the folder of a pretrained checkpoint.
        cfg: How it is served; its engine means nothing here.
        names: What requests call it; by default, what its directory is called.
        step: The checkpoint of a run; by default the newest, and newer ones once they are saved.
        trust_code: Whether code that came with a run is run to open it.
        allow_unknown_fields: Whether fields of a checkpoint that could matter are ignored.
        when_placed: Is called when weights are where they serve, before programs are compiled.

    Raises:
        AxcoreError: The model cannot be opened, the plugin cannot serve it, or the config sets what
            only an engine has.
    """
    _check_config(api, cfg)
    folder, run, found_step = Path(directory).expanduser(), None, None
    if is_published(folder):
        if step is not None:
            raise ConfigError("a pretrained checkpoint has no steps", where="--step")
        read = from_hugging_face(folder, allow_unknown_fields=allow_unknown_fields)
        tokenizer = checkpoint_tokenizer(
            PretrainedCheckpoint(folder, allow_unknown_fields=allow_unknown_fields)
        ).build()
        opened = ApiModel(
            folder=folder,
            model=read.model,
            state=read.state,
            tokenizer=tokenizer,
            limits=cfg.limits,
        )
        policy = None
    else:
        run = load_run(folder, step=step, trust_code=trust_code)
        # By way of the host, so that all of it is on one device, wherever it was trained.
        restored = run.restored(step, on_host=True)
        found_step = restored.step
        state = jax.device_put(run.trainer.step.own_part(restored.state))
        opened = ApiModel(
            folder=folder, model=run.model, state=state, trainer=run.trainer, limits=cfg.limits
        )
        policy = run.trainer.compiler.kernel_policy
    served = ServedApi(
        name=names[0] if names else folder.resolve().name,
        aliases=tuple(names[1:]),
        limits=cfg.limits,
        step=found_step,
        endpoints=endpoints_of(api, opened),
        state=opened.state,
        policy=policy,
    )
    when_placed()
    served.warm_up()
    return served, None if step is not None else run


def endpoints_of(api: ModelApi, opened: ApiModel) -> tuple[AnyEndpoint, ...]:
    """Return the endpoints that a plugin has for a model.

    Raises:
        AxcoreError: It has none, returns something else, or cannot serve the model.
    """
    found = api.call("fn", opened, returns=list, expected="a list of Endpoints")
    if not found or not all(isinstance(one, Endpoint) for one in found):
        raise api.wrong_return("fn", found, "a list of Endpoints, one or more")
    return tuple(found)


def _check_config(api: ModelApi, cfg: ServerConfig) -> None:
    """Refuse what nothing would read.

    Raises:
        ConfigError: Something is set that is for models of text, or there are several processes.
    """
    usual = ServerConfig()
    for name in ("mesh", "engine", "pooling", "seed"):
        if getattr(cfg, name) != getattr(usual, name):
            raise ConfigError(
                f"{name} is set, which the API {api.name!r} of {api.plugin} does not have",
                where=name,
                hint=f"leave out --set {name}",
            )
    if process_count() > 1:
        raise ConfigError(
            f"the API {api.name!r} of {api.plugin} is served by one process, and there are "
            f"{process_count()}",
            hint="start one process",
        )
