"""The meter distinguishes designs: the same feature, added to N x M models in three designs.

Each design is a small real one: its source is generated, run, and every model in it traced to see
that the feature (a rotation, which computes a sine) is really there. What is counted is the source
that the feature asks for.
"""

import jax
import jax.numpy as jnp
import pytest

from axcore.complexity import code_lines, measure_growth

ROTATE = "def rotate(x):\n    return jnp.sin(x)\n"
"""The feature's own implementation, which is not counted."""


def encapsulated(models: int, variants: int) -> tuple[str, str]:
    """Models are trees that a traversal edits: the feature is one replacement in all of them."""
    existing = f"""
def build(node):
    return node[0] if len(node) == 1 else (lambda x: node[0](build(node[1])(x)))

def replace(node, old, new):
    if not isinstance(node, tuple):
        return new if node is old else node
    return tuple(replace(inner, old, new) for inner in node)

scales = [lambda x, s=s: x * s for s in range({variants})]
shifts = [lambda x, s=s: x + s for s in range({models})]
same = lambda x: x
trees = [(scale, (shift, (same,))) for shift in shifts for scale in scales]
"""
    return existing, "models = [build(replace(tree, same, rotate)) for tree in trees]\n"


def subclassed(models: int, variants: int) -> tuple[str, str]:
    """Models are classes, variants their arguments: the feature is a subclass of each model."""
    existing, written = "", "models = []\n"
    for n in range(models):
        existing += f"""
class Model{n}:
    def __init__(self, scale):
        self.scale = scale
    def __call__(self, x):
        return self.scale * (x + {n})
"""
        written += f"""
class RotatingModel{n}(Model{n}):
    def __call__(self, x):
        return super().__call__(rotate(x))

models += [RotatingModel{n}(scale) for scale in range({variants})]
"""
    return existing, written


def copied(models: int, variants: int) -> tuple[str, str]:
    """Each variant of each model is a function of its own: the feature is a line in every one."""
    existing, written = "", "models = []\n"
    for n in range(models):
        for m in range(variants):
            existing += f"def model_{n}_{m}(x):\n    return {m} * (x + {n})\n"
            written += f"models.append(lambda x: model_{n}_{m}(rotate(x)))\n"
    return existing, written


def lines_of(design):
    def count(models: int, variants: int) -> int:
        existing, written = design(models, variants)
        names = {"jnp": jnp}
        exec(ROTATE + existing + written, names)
        assert len(names["models"]) == models * variants
        for model in names["models"]:
            traced = jax.make_jaxpr(model)(jnp.float32(1))
            assert any(equation.primitive.name == "sin" for equation in traced.eqns)
        return len(code_lines(written))

    return count


@pytest.mark.parametrize(
    ("design", "complexity", "in_models", "in_variants"),
    [
        (encapsulated, "constant", 0, 0),
        (subclassed, "linear", 1, 0),
        (copied, "quadratic", 1, 1),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_meter_tells_designs_apart(design, complexity, in_models, in_variants):
    growth = measure_growth(lines_of(design), models=8, variants=8)
    assert growth.complexity == complexity
    assert growth.in_models == pytest.approx(in_models, abs=0.1)
    assert growth.in_variants == pytest.approx(in_variants, abs=0.1)
