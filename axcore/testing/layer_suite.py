"""`LayerSuite`: a model with a layer variant learns, and sees nothing later.

Letters: B rows, T tokens of a row, V vocabulary.
"""

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import attrs
import numpy as np

from axcore.config import from_json, replace_config, to_json
from axcore.plugins import LayerVariant
from axcore.registration.record import Record
from axcore.testing.suite import Suite

_TOKENS_BT = np.random.default_rng(0).integers(97, 122, (2, 16), np.int32)
_NOISE = 0.02
"""Added to every parameter, as at first some, those of a gate for example, hide others."""


@attrs.frozen
class Trial:
    """A model at work: its first state, and `run(state, tokens_BT)`.

    `run` returns the loss, its gradient and the logits `[B, T, V]`.
    """

    state: Any
    run: Callable[[Any, Any], tuple[Any, Any, Any]]


class LayerSuite(Suite):
    """Proves layer variants: `class TestLayers(LayerSuite): plugin = "axl-acme"`.

    Attributes:
        is_causal: Whether no token may see those after it.
        unused: Texts in paths of parameters that have no gradient in some layer, by the key of
            their variant: a first layer that has nothing before it, for example.
    """

    kind: ClassVar[type[Record]] = LayerVariant
    is_causal: ClassVar[bool] = True
    unused: ClassVar[dict[str, tuple[str, ...]]] = {}

    def model(self, record: LayerVariant) -> Any:
        """Returns the config of a model with the variant; a small transformer, if left as it is."""
        from axcore.modifiers import with_variant
        from axcore.testing.tiny import small_experiment

        with tempfile.TemporaryDirectory() as folder:
            return with_variant(small_experiment(Path(folder)).model, record.name)

    def test_model_is_saved_and_read_back(self, record: LayerVariant) -> None:
        """A run directory holds it."""
        cfg = self.model(record)
        assert from_json(to_json(cfg)) == cfg

    def test_model_learns_in_every_parameter(self, record: LayerVariant) -> None:
        """Each has a finite gradient that is not zero, and a step along it lowers the loss."""
        import jax

        trial = _trial(to_json(self.model(record)))
        loss, gradient, _ = trial.run(trial.state, _TOKENS_BT)
        for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            assert np.all(np.isfinite(leaf)), f"the gradient of {name} is not finite"
            if not any(text in name for text in self.unused.get(record.key, ())):
                assert np.any(leaf), f"{name} has no gradient"
        after = jax.tree.map(lambda x, slope: x - 1e-2 * slope, trial.state, gradient)
        assert trial.run(after, _TOKENS_BT)[0] < loss

    def test_no_token_sees_a_later_one_or_another_row(self, record: LayerVariant) -> None:
        """Logits depend on the tokens of their own row up to their own."""
        trial = _trial(to_json(self.model(record)))
        logits_BTV = trial.run(trial.state, _TOKENS_BT)[2]
        changed_BT = _TOKENS_BT.copy()
        changed_BT[0, 9] = 3
        after_BTV = trial.run(trial.state, changed_BT)[2]
        assert not np.allclose(after_BTV[0, 9:], logits_BTV[0, 9:], atol=1e-6)
        np.testing.assert_allclose(after_BTV[1], logits_BTV[1], atol=1e-5)
        if self.is_causal:
            np.testing.assert_allclose(after_BTV[0, :9], logits_BTV[0, :9], atol=1e-5)

    def test_remat_changes_no_number(self, record: LayerVariant) -> None:
        """What a layer computes again in the backward pass is what it computed first."""
        from axcore.config import evolve
        from axcore.layers import TransformerLayer
        from axcore.module import Remat

        cfg = self.model(record)
        again = replace_config(cfg, TransformerLayer, lambda old: evolve(old, remat=Remat()))
        plain, remat = _trial(to_json(cfg)), _trial(to_json(again))
        want, got = (one.run(plain.state, _TOKENS_BT) for one in (plain, remat))
        np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
        _assert_close(got[1], want[1])


@functools.lru_cache(maxsize=2)
def _trial(model: str) -> Trial:
    """Returns a model, given as JSON, ready to run; tests of one record share its compilation."""
    import jax

    from axcore.module import functional

    built: Any = from_json(model).build()

    def loss(state: Any, tokens_BT: Any) -> Any:
        logits_BTV, outputs = functional(built, state, tokens_BT, method="logits")
        log_BTV = jax.nn.log_softmax(logits_BTV[:, :-1])
        picked = jax.numpy.take_along_axis(log_BTV, tokens_BT[:, 1:, None], axis=-1)
        added = outputs.total_loss() if outputs.losses else 0.0
        return -picked.mean() + added, logits_BTV

    def run(state: Any, tokens_BT: Any) -> Any:
        (value, logits_BTV), gradient = jax.value_and_grad(loss, has_aux=True)(state, tokens_BT)
        return value, gradient, logits_BTV

    random = np.random.default_rng(1)
    state = jax.tree.map(
        lambda x: x + _NOISE * random.standard_normal(x.shape).astype(x.dtype), built.init(0)
    )
    return Trial(state, jax.jit(run))


def _assert_close(got: Any, want: Any) -> None:
    import jax

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), got, want)
