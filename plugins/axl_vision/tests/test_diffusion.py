"""DiT and flow matching: equal to the formula, and a picture depends on its seed and number."""

import functools
import json
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_vision.diffusion import AdaptiveResidual
from axl_vision.flow_experiments import digits_flow
from axl_vision.generate import generate_images, image_grid
from axl_vision.models import dit
from click.testing import CliRunner
from compiled_call import call_compiled
from numpy_state import numpy_state

from axcore.cli.main import group
from axcore.config import evolve, to_dict, update_config
from axcore.data import ArrayData
from axcore.errors import ConfigError, ModuleError
from axcore.layers import Stack
from axcore.module import Remat, functional
from axcore.tasks import CosinePath, FlowMatching, LogitNormalTime, StraightPath, integrate
from axcore.tasks.flow_matching import noised_latents, row_hashes
from axcore.testing import trainer_on
from axcore.trainer import StepsDone

CFG = update_config(
    dit("toy", num_classes=3, image_size=8, patch_size=4, num_channels=1),
    {"dim": 16, "stack.num_layers": 2, "**.num_heads": 2, "**.hidden_dim": 32, "time.num_waves": 8},
)
RANDOM = np.random.default_rng(0)
PICTURES = RANDOM.integers(0, 256, (4, 8, 8, 1)).astype(np.uint8)
LATENTS = RANDOM.normal(size=(4, 8, 8, 1)).astype(np.float32)
TIMES, CLASSES = np.float32([0, 0.3, 0.7, 1]), np.int32([0, 1, 2, 3])
INPUTS = tuple(map(jnp.asarray, (LATENTS, TIMES, CLASSES)))


@pytest.fixture(scope="module")
def model():
    return CFG.build()


@pytest.fixture(scope="module")
def state(model):
    """Of a model in which nothing is zero: its conditions and its output matter."""
    return jax.tree.map(jnp.asarray, numpy_state(model.param_specs()))


def test_a_new_model_says_zero_and_each_of_its_layers_changes_nothing(model):
    first = model.init(0)
    assert not np.any(call_compiled(model, first, LATENTS, TIMES, CLASSES))
    layer = jax.tree.map(lambda x: x[0], first["stack"]["layer"])
    assert not np.any(layer["attention_residual"]["modulation"]["linear"]["weight"])


def test_the_velocity_depends_on_every_pixel_on_the_time_and_on_the_class(model, state):
    def velocity(latents=LATENTS, times=TIMES, classes=CLASSES):
        return call_compiled(model, state, latents, times, classes)

    whole = velocity()
    assert whole.shape == LATENTS.shape
    for changed in (
        velocity(latents=LATENTS + np.eye(8, dtype=np.float32)[None, :, :, None]),
        velocity(times=TIMES + 0.1),
        velocity(classes=(CLASSES + 1) % 4),
    ):
        assert np.all(np.abs(changed - whole).max(axis=(1, 2, 3)) > 1e-3)


def test_patches_are_put_back_where_they_were_read(model):
    picture = np.arange(64, dtype=np.float32).reshape(1, 8, 8, 1)
    patches = picture.reshape(1, 2, 4, 2, 4, 1).swapaxes(2, 3).reshape(1, 4, 16)
    assert np.array_equal(model._picture(patches), picture)


@pytest.mark.parametrize(
    "changes",
    [
        {"stack": Stack.Config(num_layers=2, layer=CFG.stack.layer)},
        {"stack.unroll": 2},
        {"stack.layer.remat": Remat()},
    ],
    ids=["unrolled", "unrolled scan", "recomputed"],
)
def test_stacks_of_other_kinds_agree(model, state, changes):
    other = update_config(CFG, changes).build()
    if "stack" in changes:
        layers = [jax.tree.map(lambda x, n=n: x[n], state["stack"]["layer"]) for n in range(2)]
        own = {**state, "stack": {"layer": {str(n): one for n, one in enumerate(layers)}}}
    else:
        own = state

    def squares(module):
        def of(state):
            return jnp.sum(jnp.square(functional(module, state, *INPUTS)[0]))

        return of

    found, gradient = jax.jit(jax.value_and_grad(squares(other)))(own)
    wanted, other_gradient = jax.jit(jax.value_and_grad(squares(model)))(state)
    assert found == pytest.approx(float(wanted), rel=1e-4)
    for name in ("time", "classes"):
        for x, y in zip(*map(jax.tree.leaves, (gradient[name], other_gradient[name])), strict=True):
            np.testing.assert_allclose(x, y, rtol=2e-3, atol=1e-4 * np.abs(y).max())
            assert np.any(y)  # the loss reaches what is drawn through the shared value


def test_a_layer_without_a_condition_says_what_is_missing():
    residual = AdaptiveResidual.Config(dim=4).build()
    with pytest.raises(ModuleError, match="runs without one") as error:
        functional(residual, residual.init(0), jnp.ones((1, 2, 4)), lambda x: x)
    assert "with_shared(CONDITION" in error.value.hint


# -- The task ------------------------------------------------------------------------------------


def task(**options):
    return FlowMatching.Config(inputs=("label",), **options).build(model=CFG)


TASK = task()


@functools.partial(jax.jit, static_argnames=("module", "training"))
def sums(module, state, batch, training=False, rng=None):
    _, outputs = functional(module, state, batch, training=training, rng=rng)
    (loss,) = outputs.losses.values()
    return loss.sum, loss.weight


def loss_of(module, state, batch, **options):
    return tuple(map(float, sums(module, state, batch, **options)))


def batch_of(rows=slice(None), weights=None):
    batch = {"image": jnp.asarray(PICTURES[rows]), "label": jnp.asarray(CLASSES[rows] % 3)}
    return batch if weights is None else {**batch, "row_weights": jnp.asarray(weights)}


@pytest.mark.parametrize("path", [StraightPath.Config(), CosinePath.Config()], ids=["flow", "v"])
def test_the_loss_is_the_weighted_squared_error_of_the_velocity(state, path):
    module, weights = task(path=path), np.float32([1, 2, 0.5, 0])
    x1 = PICTURES / np.float32(127.5) - 1
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), row_hashes(PICTURES))
    t = jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, 0)))(keys)
    x0 = np.stack([jax.random.normal(jax.random.fold_in(key, 1), (8, 8, 1)) for key in keys])
    t = np.asarray(t, np.float32)[:, None, None, None]
    quarter = np.float32(np.pi / 2)
    if isinstance(path, StraightPath.Config):
        noised, velocity = (1 - t) * x0 + t * x1, x1 - x0
    else:
        sine, cosine = np.sin(quarter * t), np.cos(quarter * t)
        noised, velocity = sine * x1 + cosine * x0, quarter * (cosine * x1 - sine * x0)
    predicted = call_compiled(module.model, state, noised, t[:, 0, 0, 0], CLASSES % 3)
    wanted = np.sum(np.mean((predicted - velocity) ** 2, axis=(1, 2, 3)) * weights)
    found, weight = loss_of(module, state, batch_of(weights=weights))
    assert (found, weight) == (pytest.approx(wanted, rel=1e-4), 3.5)


@pytest.mark.parametrize("path", [StraightPath.Config(), CosinePath.Config()])
def test_a_path_leads_from_noise_to_data_by_its_velocity(path):
    path, data, noise = path.build(), jnp.ones((3, 2)) * 2, jnp.ones((3, 2)) * 3
    ends, _ = noised_latents(path.at(jnp.float32([0, 1, 1])), data, noise)
    np.testing.assert_allclose(ends[:, 0], [3, 2, 2], atol=1e-5)
    times = jnp.float32([0.2, 0.5, 0.9])

    def at(times):
        return noised_latents(path.at(times), data, noise)[0]

    _, slope = jax.jvp(at, (times,), (jnp.ones(3),))
    np.testing.assert_allclose(slope, noised_latents(path.at(times), data, noise)[1], rtol=1e-5)


@pytest.mark.parametrize("training", [False, True])
def test_padding_rows_change_neither_loss_nor_gradient(state, training):
    options = {"training": training, "rng": jax.random.key(3) if training else None}
    padded = batch_of(weights=np.float32([1, 1, 0, 0]))

    @jax.jit
    @jax.value_and_grad
    def of(state, batch):
        total, weight = sums(TASK, state, batch, **options)
        return total / weight

    others = [batch_of(slice(2)), {**padded, "image": padded["image"].at[2:].set(7)}]
    if not training:  # which samples the classes that are dropped by the place in the batch
        others.append({name: value[::-1] for name, value in padded.items()})
    for other in others:
        pairs = zip(*map(jax.tree.leaves, (of(state, other), of(state, padded))), strict=True)
        for x, y in pairs:
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5)


def test_an_evaluation_is_a_function_of_its_rows_in_whatever_batch(state):
    module = TASK
    by_row = [loss_of(module, state, batch_of(slice(n, n + 1)))[0] for n in range(4)]
    assert loss_of(module, state, batch_of())[0] == pytest.approx(sum(by_row), rel=1e-4)
    turned = {name: value[::-1] for name, value in batch_of().items()}
    assert loss_of(module, state, turned)[0] == pytest.approx(sum(by_row), rel=1e-4)
    first, second = (
        loss_of(module, state, batch_of(), training=True, rng=jax.random.key(n))[0] for n in (0, 1)
    )
    assert first != pytest.approx(second, rel=1e-3)  # training samples others


def test_rows_hash_alike_only_where_they_are_equal():
    assert len({int(one) for one in row_hashes(jnp.asarray(PICTURES))}) == 4
    changed = PICTURES.copy()
    changed[1, 0, 0, 0] ^= 1
    same = np.asarray(row_hashes(changed) == row_hashes(PICTURES))
    assert same.tolist() == [True, False, True, True]


def test_classes_are_dropped_in_training_alone():
    classes = CFG.classes.build(dim=2, num_classes=3)
    state = {"embedding": {"weight": np.arange(8, dtype=np.float32).reshape(4, 2)}}
    many = jnp.zeros(2000, jnp.int32)
    kept, _ = functional(classes, state, many, rng=0)
    drawn, _ = functional(classes, state, many, rng=0, training=True)
    assert not np.any(kept[:, 0])
    assert set(np.unique(drawn[:, 0])) == {0.0, 6.0}
    assert np.mean(drawn[:, 0] == 6) == pytest.approx(0.1, abs=0.02)


def test_times_are_in_the_path_and_those_of_a_logit_normal_in_its_middle():
    keys = jax.random.split(jax.random.key(0), 2000)
    times = jax.vmap(LogitNormalTime.Config(mean=1.0, std=0.5).build().sample)(keys)
    assert np.all((times > 0) & (times < 1))
    assert np.median(times) == pytest.approx(1 / (1 + np.exp(-1)), abs=0.01)


REFUSED = {
    "no generative model": ({"model": "digits"}, "trains a GenerativeModel, and the model is a"),
    "more classes": ({"label": CLASSES}, "label numbers 4 classes; num_classes is 3"),
    "other shape": ({"image": PICTURES[:, :4]}, "shape .4, 8, 1.; those of this model"),
    "unread": ({"more": CLASSES}, "reads image, label, and a batch has"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_trained_is_refused_before_training(changes, message, tmp_path, monkeypatch):
    monkeypatch.setenv("AXCORE_DATA_CACHE", str(tmp_path))
    cfg = digits_flow()
    arrays = {"image": PICTURES, "label": CLASSES % 3, **changes}
    model = CFG if arrays.pop("model", None) is None else digits_model()
    data = ArrayData.Config(train=arrays, batch_size=2, validation_fraction=0.0)
    with pytest.raises((ConfigError, ModuleError), match=message):
        trainer_on(evolve(cfg, model=model, data=data, max_steps=4), 1)


def digits_model():
    from axl_vision.experiments import digits

    return digits().model


# -- Sampling ------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["euler", "heun"])
def test_a_solver_follows_a_constant_velocity_exactly_and_errs_by_its_order(solver):
    noise, target = jnp.asarray(LATENTS), jnp.asarray(LATENTS[::-1])
    straight = integrate(lambda x, t: target - noise, noise, num_steps=3, solver=solver)
    np.testing.assert_allclose(straight, target, atol=1e-5)

    def error(num_steps):  # of dx/dt = x, which grows by e
        found = integrate(lambda x, t: x, jnp.ones(1), num_steps=num_steps, solver=solver)
        return float(np.e - found[0])

    order = {"euler": 1, "heun": 2}[solver]
    assert np.log2(error(8) / error(16)) == pytest.approx(order, abs=0.15)


def test_a_picture_is_a_function_of_seed_number_and_class(model, state):
    options = {"num_steps": 2, "guidance": 2.0}
    many = generate_images(model, state, [0, 1, 2] * 13, seed=3, **options)
    assert (many.shape, many.dtype) == ((39, 8, 8, 1), np.uint8)
    few = generate_images(model, state, [0, 1, 2] * 2, seed=3, **options)
    assert np.array_equal(few, many[:6])  # of one program, so in every bit
    mixed = generate_images(model, state, [0, 2, 2], seed=3, **options)
    same = [np.array_equal(mixed[n], many[n]) for n in range(3)]
    assert same == [True, False, True]
    assert not np.array_equal(generate_images(model, state, [0], seed=4, **options)[0], many[0])


def test_guidance_leads_from_no_class_past_the_class(model, state):
    def drawn(classes, guidance):
        return generate_images(
            model, state, classes, num_steps=1, solver="euler", guidance=guidance
        ).astype(int)

    of_class, of_none, beyond = drawn([1], 1.0), drawn([3], 1.0), drawn([1], 2.0)
    assert np.array_equal(drawn([1], 0.0), of_none)
    shown = np.stack([of_class, of_none, beyond])
    inside = np.all((shown > 0) & (shown < 255), axis=0)  # bytes end there
    error = beyond - (2 * of_class - of_none)
    assert inside.sum() > 10
    assert np.abs(error[inside]).max() <= 3  # each of them is rounded


def test_wrong_classes_are_refused(model, state):
    with pytest.raises(ConfigError, match="class 7 is asked for; the model has 3"):
        generate_images(model, state, [7])


def test_a_grid_shows_pictures_by_row():
    grid = image_grid(np.stack([np.full((2, 2, 1), n, np.uint8) for n in range(3)]), 2)
    assert grid[..., 0].tolist() == [
        [0, 0, 128, 1, 1],
        [0, 0, 128, 1, 1],
        [128, 128, 128, 128, 128],
        [2, 2, 128, 128, 128],
        [2, 2, 128, 128, 128],
    ]


@pytest.mark.slow
def test_a_run_is_opened_by_a_program_that_has_loaded_no_plugin_yet(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(to_dict(digits_flow())))
    program = f"from axcore.runs import load_run; print(load_run({str(tmp_path)!r}).config.model)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "DiT.Config" in ran.stdout, ran.stderr


# -- The experiment ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The experiment with a smaller model, for a few steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AXCORE_DATA_CACHE", str(tmp_path_factory.mktemp("cache")))
        cfg = update_config(
            digits_flow(),
            {
                "model.dim": 16,
                "**.num_layers": 1,
                "**.unroll": 1,
                "**.num_heads": 2,
                "**.hidden_dim": 16,
                "data.batch_size": 16,
                "data.validation_batches": 2,
                "max_steps": 4,
                "logging.every_steps": 1,
                "eval_every_steps": 2,
                "checkpoint.every_steps": 2,
                "learner.schedule.warmup_steps": 1,
            },
        )
        yield trainer_on(cfg, 1)


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(small, tmp_path):
    def stop(event):
        if isinstance(event, StepsDone) and event.step == 3:
            signal.raise_signal(signal.SIGINT)

    whole = small.run(tmp_path / "whole", quiet=True)
    assert small.run(tmp_path / "run", [stop], returns_when_stopped=True, quiet=True).step == 3
    resumed = small.run(tmp_path / "run", quiet=True)
    assert resumed.validation == whole.validation
    pairs = zip(*map(jax.tree.leaves, (resumed.state, whole.state)), strict=True)
    assert all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


@pytest.mark.slow
def test_the_command_generates_pictures_of_a_run(small, tmp_path):
    from PIL import Image

    small.run(tmp_path / "run", quiet=True)

    def run(*words):
        done = CliRunner().invoke(group, ["generate", str(tmp_path / "run"), *words])
        return done.exit_code, done.output + str(done.exception or "")

    steps = ("--num-steps", "1")
    code, text = run("--class", "3", "--num-images=4", "--output", f"{tmp_path}/a.png", *steps)
    assert code == 0, text
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == (33, 33)
    code, text = run("--num-images=11", "--output", f"{tmp_path}/all", "--json", *steps)
    assert json.loads(text)["classes"] == [*"01234567890"]
    assert len(list((tmp_path / "all").iterdir())) == 11
    assert "no class 'ten'" in run("--class", "ten")[1]
    assert "No such option" in run("--prompt", "a digit")[1]
