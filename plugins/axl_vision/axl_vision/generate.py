"""`generate_images`, and `axcore generate` for models that generate pictures."""

import functools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from axcore.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Array

    from axcore.tasks import Solver
    from axl_vision.diffusion import DiT

Images = NDArray[np.uint8]

BATCH = 32
"""Pictures that are generated at once. A program is made for so many, however few are wanted."""


def generate_images(
    model: "DiT",
    state: Any,
    classes: Sequence[int],
    *,
    seed: int = 0,
    num_steps: int = 25,
    guidance: float = 2.0,
    solver: "Solver" = "heun",
) -> Images:
    """Return a picture of each class, `[N, H, W, C]` bytes.

    A picture depends on the seed, on its number among the classes and on its class alone, to
    rounding.

    Args:
        model: A `DiT`.
        state: Of the model.
        classes: Numbers of classes; the model's `num_classes` is none of them.
        seed: Of the noise that pictures begin as.
        num_steps: Steps of the solver.
        guidance: How far the class is followed beyond what the model learned: 1 is that, 0 ignores
            the class. Everything but 1 asks the model twice.
        solver: `euler`, or `heun`, which asks the model twice a step and needs fewer of them.

    Raises:
        ConfigError: A number of a class or of steps makes no sense.

    Source: guidance, Ho and Salimans 2022, arXiv:2207.12598, eq. 6.
    """
    known = model.config.num_classes
    if wrong := [one for one in classes if not 0 <= one <= known]:
        raise ConfigError(
            f"class {wrong[0]} is asked for; the model has {known}",
            where="classes",
            hint=f"0 to {known - 1} are classes, {known} is none of them",
        )
    if num_steps < 1:
        raise ConfigError(f"num_steps is {num_steps}", where="num_steps", hint="num_steps=25")
    program = _program(model, num_steps, float(guidance), solver)
    made = []
    for begin in range(0, len(classes), BATCH):
        some = np.asarray(classes[begin : begin + BATCH], np.int32)
        padded = np.full(BATCH, known, np.int32)
        padded[: len(some)] = some
        numbers = np.arange(begin, begin + BATCH, dtype=np.uint32)
        made.append(np.asarray(program(state, np.uint32(seed), numbers, padded))[: len(some)])
    return np.concatenate(made)


@functools.lru_cache(maxsize=8)
def _program(
    model: "DiT", num_steps: int, guidance: float, solver: "Solver"
) -> Callable[..., "Array"]:
    """Return the compiled function of state, seed, numbers and classes to a batch of pictures."""
    import jax
    import jax.numpy as jnp

    from axcore.module import functional
    from axcore.tasks import integrate

    def run(state: Any, seed: "Array", numbers: "Array", classes: "Array") -> "Array":
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), numbers)
        noise = jax.vmap(lambda key: jax.random.normal(key, model.latent_shape))(keys)

        def velocity(latents: "Array", time: "Array") -> "Array":
            def of(latents: "Array", classes: "Array") -> "Array":
                times = jnp.broadcast_to(time, len(latents))
                return functional(model, state, latents, times, classes)[0]

            if guidance == 1.0:
                return of(latents, classes)
            none = jnp.full_like(classes, model.config.num_classes)
            both = of(jnp.concatenate([latents] * 2), jnp.concatenate([classes, none]))
            of_class, of_none = jnp.split(both, 2)
            return of_none + guidance * (of_class - of_none)

        latents = integrate(velocity, noise, num_steps=num_steps, solver=solver)
        return functional(model, state, latents, method="from_latents")[0]

    return jax.jit(run)


@click.command()
@click.argument("run")
@click.option(
    "--class",
    "names",
    metavar="NAME",
    multiple=True,
    help="Of what, named as in the data; by default all classes in turn. Repeatable.",
)
@click.option("--num-images", default=16, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--output",
    metavar="FILE|FOLDER",
    default="images.png",
    show_default=True,
    type=click.Path(path_type=Path),
    help="One picture that shows all, or a folder, without a suffix, for a file of each.",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**32 - 1))
@click.option("--num-steps", default=25, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--guidance",
    default=2.0,
    show_default=True,
    help="How far the class is followed: 1 as the model learned it, more for clearer pictures.",
)
@click.option("--solver", default="heun", show_default=True, type=click.Choice(["euler", "heun"]))
@click.option("--step", type=int, help="Checkpoint to use; by default the newest.")
@click.option("--trust-code", is_flag=True, help="Run code that came with the run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def generate(
    run: str,
    names: tuple[str, ...],
    num_images: int,
    output: Path,
    step: int | None,
    trust_code: bool,
    as_json: bool,
    **sampling: Any,
) -> None:
    """Generate pictures from RUN, a run directory, as PNG."""
    from axcore.ops import use_policy
    from axcore.runs import load_run
    from axl_vision.diffusion import DiT

    opened = load_run(run, step=step, trust_code=trust_code)
    if not isinstance(opened.model, DiT):
        raise ConfigError(
            f"the model is a {type(opened.model).__qualname__}, which generates no pictures",
            where="model",
            hint="that of `axcore train digits-flow` does",
        )
    known = _class_names(opened.trainer)
    chosen = [known.index(_known(name, known)) for name in names] or list(range(len(known)))
    classes = [chosen[number % len(chosen)] for number in range(num_images)]
    with use_policy(opened.trainer.compiler.kernel_policy):
        images = generate_images(opened.model, opened.state, classes, **sampling)
    if output.suffix:
        columns = len(chosen) if len(chosen) > 1 else math.ceil(math.sqrt(num_images))
        _save(image_grid(images, columns), output)
    else:
        for number, (image, label) in enumerate(zip(images, classes, strict=True)):
            _save(image, output / f"{number:05}-{label}.png")
    if as_json:
        labels = [known[one] for one in classes]
        click.echo(json.dumps({"step": opened.step, "output": str(output), "classes": labels}))
    else:
        click.echo(f"{output}: {num_images} pictures, from step {opened.step}")


def _class_names(trainer: Any) -> tuple[str, ...]:
    """Return the names of classes, as the config or the data have them; else their numbers."""
    from axcore.data import Label

    features = getattr(trainer.data, "features", {})
    inputs = getattr(trainer.config.task, "inputs", ())
    for name in inputs:
        label = features.get(name)
        # With their number alone, names are not known before the data are read.
        if isinstance(label, Label) and (label.config.classes or label.learns):
            return tuple(label.classes)
    return tuple(map(str, range(trainer.model.config.num_classes)))


def _known(name: str, known: tuple[str, ...]) -> str:
    from axcore.config import suggest_names

    if name not in known:
        raise ConfigError(
            f"there is no class {name!r}", where="--class", hint=suggest_names(name, known)
        )
    return name


def image_grid(images: Images, columns: int) -> Images:
    """Return pictures in rows of so many, with a line of grey between them."""
    count, height, width, channels = images.shape
    rows = -(-count // columns)
    grid = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1, channels), 128, np.uint8)
    for number, image in enumerate(images):
        top, left = number // columns * (height + 1), number % columns * (width + 1)
        grid[top : top + height, left : left + width] = image
    return grid


def _save(image: Images, path: Path) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(path)
