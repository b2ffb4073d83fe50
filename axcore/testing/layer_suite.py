"""`LayerSuite`: a model with a layer variant learns, packs, serves, and sees nothing forbidden.

Letters: B rows, T tokens of a row, V vocabulary.
"""

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import attrs
import numpy as np
import pytest

from axcore.config import (
    evolve,
    field_names,
    from_json,
    map_config,
    replace_config,
    to_json,
    walk,
)
from axcore.plugins import LayerVariant
from axcore.registration import Record
from axcore.testing.suite import Suite

_ROWS, _LENGTH = 3, 16
_TOKENS_BT = np.random.default_rng(0).integers(97, 122, (_ROWS, _LENGTH), np.int32)
_NOISE = 0.02
"""Added to every parameter, as at first some, those of a gate for example, hide others."""
_STEPS, _STEP_SIZE = 3, 1e-2
_PROMPT = 6
"""Tokens that a cache reads at once; the others come one after another."""
_DROPOUT = 0.5


@attrs.frozen(eq=False)
class Trial:
    """A model at work: the module, its first state, tokens that it knows, and two programs of it.

    `train(state, tokens_BT, key)` returns the loss, its gradient and the logits `[B, T, V]`, of
    rows that are one document each; `logits(state, tokens_BT, info)` returns those outside of
    training.
    """

    built: Any
    state: Any
    tokens: Any
    train: Callable[[Any, Any, Any], tuple[Any, Any, Any]]
    logits: Callable[[Any, Any, Any], Any]


class LayerSuite(Suite):
    """Proves layer variants: `class TestLayers(LayerSuite): plugin = "axl-acme"`.

    Attributes:
        is_causal: Whether no token may see those after it.
        unused: Texts in paths of parameters that have no gradient in some layer, by the key of
            their variant: a first layer that has nothing before it, for example.
        not_packed: Keys of variants that are not made for rows of several documents.
        not_served: Keys of variants that no model serves with.
    """

    kind: ClassVar[type[Record]] = LayerVariant
    is_causal: ClassVar[bool] = True
    unused: ClassVar[dict[str, tuple[str, ...]]] = {}
    not_packed: ClassVar[tuple[str, ...]] = ()
    not_served: ClassVar[tuple[str, ...]] = ()

    def base(self) -> Any:
        """Return the config of the model that variants are put into; a small transformer."""
        from axcore.testing.tiny import small_experiment

        with tempfile.TemporaryDirectory() as folder:
            return small_experiment(Path(folder)).model

    def model(self, record: LayerVariant) -> Any:
        """Return the config of a model with the variant; `base` with it, if left as it is."""
        from axcore.modifiers import with_variant

        return with_variant(self.base(), record.name)

    # -- What it is --------------------------------------------------------------------------

    def test_model_is_saved_and_read_back(self, record: LayerVariant) -> None:
        """A run directory contains it."""
        cfg = self.model(record)
        assert from_json(to_json(cfg)) == cfg

    def test_parameters_stay_in_float32_where_it_computes_in_bfloat16(
        self, record: LayerVariant
    ) -> None:
        """What is trained loses small steps in 16 bits; what is computed stays near float32's."""
        import jax

        trial, narrow = self._trial(record), _trial(_in_bfloat16(self.model(record)))
        abstract = jax.eval_shape(lambda: narrow.built.init(0))
        kept = {
            jax.tree_util.keystr(path, simple=True, separator="."): str(leaf.dtype)
            for path, leaf in jax.tree_util.tree_leaves_with_path(abstract)
        }
        wrong = {name: dtype for name, dtype in kept.items() if dtype in ("bfloat16", "float16")}
        assert not wrong, f"parameters are kept in 16 bits: {wrong}"
        whole = _whole(trial.tokens)
        want_BTV = np.asarray(trial.logits(trial.state, trial.tokens, whole), np.float64)
        got_BTV = np.asarray(narrow.logits(trial.state, trial.tokens, whole), np.float64)
        error = np.sqrt(np.mean((got_BTV - want_BTV) ** 2) / np.mean(want_BTV**2))
        assert error < 0.1, f"logits in bfloat16 are off by {error:.0%} of those in float32"

    def test_nothing_but_config_and_state_decides_what_is_computed(
        self, record: LayerVariant
    ) -> None:
        """A second build, and a second trace of the first, are the same program."""
        import jax

        trial = self._trial(record)
        again = from_json(to_json(self.model(record))).build()
        first, second = (jax.tree.leaves(one.init(0)) for one in (trial.built, again))
        same = all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
        assert same, "two builds of one config have other parameters from the same key"
        programs = [_description(one, trial) for one in (trial.built, trial.built, again)]
        assert programs[1] == programs[0], "traced again, the same module is another program"
        assert programs[2] == programs[0], "built again, the same config is another program"

    # -- Training ----------------------------------------------------------------------------

    def test_model_learns_in_every_parameter(self, record: LayerVariant) -> None:
        """Each has a finite gradient that is not zero, and steps along it lower the loss."""
        import jax

        trial = self._trial(record)
        state, losses = trial.state, []
        for step in range(_STEPS):
            loss, gradient, _ = trial.train(state, trial.tokens, jax.random.key(7))
            losses.append(float(loss))
            self._check_gradient(record, gradient, step)
            state = jax.tree.map(lambda x, slope: x - _STEP_SIZE * slope, state, gradient)
        assert losses[-1] < losses[0], f"the loss does not fall over {_STEPS} steps: {losses}"

    def _check_gradient(self, record: LayerVariant, gradient: Any, step: int) -> None:
        import jax

        for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            assert np.all(np.isfinite(leaf)), f"the gradient of {name} is not finite"
            if step == 0 and not any(text in name for text in self.unused.get(record.key, ())):
                assert np.any(leaf), f"{name} has no gradient"

    def test_remat_changes_no_number(self, record: LayerVariant) -> None:
        """What a layer computes again in the backward pass is what it computed first."""
        import jax

        from axcore.layers import TransformerLayer
        from axcore.module import Remat

        cfg = self.model(record)
        again = replace_config(cfg, TransformerLayer, lambda old: evolve(old, remat=Remat()))
        plain, remat = _trial(cfg), _trial(again)
        key = jax.random.key(7)
        want, got = (one.train(plain.state, plain.tokens, key) for one in (plain, remat))
        np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
        _assert_close(got[1], want[1])

    def test_random_numbers_come_from_the_key_and_in_training_only(
        self, record: LayerVariant
    ) -> None:
        """Every dropout of the variant is on: another key drops others, an equal key the same."""
        import jax

        trial = _trial(self._with_dropout(record))
        first, same, other = (
            trial.train(trial.state, trial.tokens, jax.random.key(seed))[2] for seed in (7, 7, 8)
        )
        plain = trial.logits(trial.state, trial.tokens, _whole(trial.tokens))
        is_drawn = not np.allclose(first, plain, atol=1e-5)
        np.testing.assert_array_equal(same, first, "the same key gives other numbers")
        if is_drawn:
            is_other = not np.allclose(first, other, atol=1e-6)
            assert is_other, "training differs from evaluation, and yet two keys give the same"
        else:
            assert np.allclose(first, other, atol=1e-5), "keys differ, from no named stream"
        has_dropout = to_json(self._with_dropout(record)) != to_json(self.model(record))
        assert is_drawn or not has_dropout, f"a dropout of {_DROPOUT} changes nothing in training"

    # -- What tokens see ---------------------------------------------------------------------

    def test_no_token_sees_a_later_one_or_another_row(self, record: LayerVariant) -> None:
        """Logits depend on the tokens of their own row up to their own."""
        trial = self._trial(record)
        whole, tokens_BT = _whole(trial.tokens), trial.tokens
        logits_BTV = trial.logits(trial.state, tokens_BT, whole)
        changed_BT = tokens_BT.copy()
        changed_BT[0, 9] = 3
        after_BTV = trial.logits(trial.state, changed_BT, whole)
        is_seen = not np.allclose(after_BTV[0, 9:], logits_BTV[0, 9:], atol=1e-6)
        assert is_seen, "a token changes no logits, its own neither"
        _check_same(after_BTV[1:], logits_BTV[1:], "a token of one row changes another row")
        if self.is_causal:
            _check_same(after_BTV[0, :9], logits_BTV[0, :9], "a token is seen by those before it")

    def test_documents_of_a_row_do_not_see_each_other(self, record: LayerVariant) -> None:
        """A row of two documents gives what each of them gives in a row of its own."""
        self._skip_unless_packed(record)
        trial, packed = self._trial(record), _packed(self._trial(record).tokens[0])
        logits_BTV = trial.logits(trial.state, *packed)
        end, rest = _FIRST, _LENGTH - _FIRST
        _check_same(logits_BTV[0, :end], logits_BTV[1, :end], "a document sees the one after it")
        _check_same(
            logits_BTV[0, end:],
            logits_BTV[2, :rest],
            "a document sees the one before it: what mixes tokens has to heed info.segment_ids, "
            "and what counts them info.positions",
        )

    def test_padding_changes_nothing(self, record: LayerVariant) -> None:
        """Neither the tokens that fill a row up, nor rows of nothing else."""
        self._skip_unless_packed(record)
        import jax.numpy as jnp

        trial = self._trial(record)
        tokens_BT, info = _packed(trial.tokens[0])
        ids_BT = np.array(info.segment_ids)
        ids_BT[2] = 0
        info = info._replace(segment_ids=jnp.asarray(ids_BT))
        before_BTV = trial.logits(trial.state, tokens_BT, info)
        changed_BT = np.where(ids_BT == 0, 3, tokens_BT)
        after_BTV = trial.logits(trial.state, changed_BT, info)
        is_real = ids_BT > 0
        _check_same(after_BTV[is_real], before_BTV[is_real], "other padding gives other logits")

    def _skip_unless_packed(self, record: LayerVariant) -> None:
        if record.key in self.not_packed:
            pytest.skip(f"{record.key} is in `not_packed`")

    # -- Serving and transformations ---------------------------------------------------------

    def test_cache_gives_what_the_whole_row_does(self, record: LayerVariant) -> None:
        """A prompt, then one token after another: the logits are those of the full row."""
        if record.key in self.not_served:
            pytest.skip(f"{record.key} is in `not_served`")
        from axcore.inference.cached_model import CachedModel
        from axcore.layers import KVCacheConfig

        trial = self._trial(record)
        tokens_BT = trial.tokens
        whole_BTV = trial.logits(trial.state, tokens_BT, _whole(tokens_BT))
        cache_config = KVCacheConfig(
            num_rows=_ROWS, capacity=_LENGTH + 8, max_length=_LENGTH, call_tokens=_PROMPT
        )
        cached = CachedModel(trial.built, trial.state, cache_config)
        caches, done = cached.empty_caches(), 0
        for num_new in (_PROMPT, *[1] * (_LENGTH - _PROMPT)):
            logits_BV, caches = cached.extend(
                cached.weights,
                caches,
                tokens_BT[:, done : done + num_new],
                np.full(_ROWS, done, np.int32),
                np.full(_ROWS, num_new, np.int32),
            )
            done += num_new
            _check_same(
                logits_BV,
                whole_BTV[:, done - 1],
                f"with {done - num_new} tokens in the cache, token {done - 1} gives other logits "
                "than in the full row",
            )

    def test_vmap_gives_what_one_row_after_another_does(self, record: LayerVariant) -> None:
        """Pipelines map layers over stages."""
        import jax

        trial = self._trial(record)
        info = jax.tree.map(lambda x: x[:, None], _whole(trial.tokens))
        run = jax.jit(jax.vmap(trial.logits, in_axes=(None, 0, 0)))
        mapped_BTV = run(trial.state, trial.tokens[:, None], info)[:, 0]
        whole_BTV = trial.logits(trial.state, trial.tokens, _whole(trial.tokens))
        _check_same(mapped_BTV, whole_BTV, "a row alone gives other logits under vmap")

    # -- Helpers -----------------------------------------------------------------------------

    def _trial(self, record: LayerVariant) -> Trial:
        return _trial(self.model(record))

    def _with_dropout(self, record: LayerVariant) -> Any:
        """Return the model with the dropout of its new layers on, that of the old ones as it was.

        A mask of the layer that is the same for each key would not be seen behind one of the base.
        """
        from axcore.layers import Dropout

        old = {Dropout.Config, *(type(node) for _, node in walk(self.base()))}
        return map_config(
            self.model(record), lambda node: node if type(node) in old else _dropping(node)
        )


def _dropping(node: Any) -> Any:
    """Return a config with its fields of the name dropout on."""
    from axcore.layers import Dropout

    values: dict[str, Any] = {}
    for name in field_names(node):
        value = getattr(node, name)
        if isinstance(value, Dropout.Config):
            values[name] = evolve(value, rate=_DROPOUT)
        elif "dropout" in name and isinstance(value, float):
            values[name] = _DROPOUT
    return evolve(node, **values)


_FIRST = 7
"""Tokens of the first of two documents of a row."""


def _whole(tokens_BT: Any) -> Any:
    """Return the info of rows of one document each, numbered as in a packed row."""
    import jax.numpy as jnp

    from axcore.layers import TokenInfo

    positions_BT = np.broadcast_to(np.arange(tokens_BT.shape[1], dtype=np.int32), tokens_BT.shape)
    return TokenInfo(jnp.asarray(positions_BT), jnp.ones(tokens_BT.shape, np.int32))


def _packed(tokens_T: Any) -> tuple[Any, Any]:
    """Return a row of two documents, a row of the first and a row of the second, with their info.

    The latter two end in padding.
    """
    import jax.numpy as jnp

    from axcore.layers import TokenInfo

    lengths = ((_FIRST, _LENGTH - _FIRST), (_FIRST,), (_LENGTH - _FIRST,))
    tokens_BT = np.stack([tokens_T, tokens_T, np.roll(tokens_T, -_FIRST)])
    positions_BT = np.zeros(tokens_BT.shape, np.int32)
    ids_BT = np.zeros(tokens_BT.shape, np.int32)
    for row, documents in enumerate(lengths):
        begin = 0
        for number, length in enumerate(documents, start=1):
            positions_BT[row, begin : begin + length] = np.arange(length)
            ids_BT[row, begin : begin + length] = number
            begin += length
    return tokens_BT, TokenInfo(jnp.asarray(positions_BT), jnp.asarray(ids_BT))


def _in_bfloat16(cfg: Any) -> Any:
    from axcore.module import DTypes

    return evolve(cfg, dtypes=DTypes(param="float32", compute="bfloat16"))


def _trial(cfg: Any) -> Trial:
    return _made(to_json(cfg))


@functools.lru_cache(maxsize=64)
def _made(model: str) -> Trial:
    """Return a model, given as JSON, ready to run; tests of one record share its compilation."""
    import jax

    from axcore.layers import whole_rows
    from axcore.module import functional

    built: Any = from_json(model).build()

    def loss(state: Any, tokens_BT: Any, key: Any) -> Any:
        logits_BTV, outputs = functional(
            built,
            state,
            tokens_BT,
            whole_rows(tokens_BT),
            method="logits",
            rng=key,
            training=True,
        )
        log_BTV = jax.nn.log_softmax(logits_BTV[:, :-1])
        picked = jax.numpy.take_along_axis(log_BTV, tokens_BT[:, 1:, None], axis=-1)
        added = outputs.total_loss() if outputs.losses else 0.0
        return -picked.mean() + added, logits_BTV

    def train(state: Any, tokens_BT: Any, key: Any) -> Any:
        gradient_of = jax.value_and_grad(loss, has_aux=True)
        (value, logits_BTV), gradient = gradient_of(state, tokens_BT, key)
        return value, gradient, logits_BTV

    def logits(state: Any, tokens_BT: Any, info: Any) -> Any:
        return functional(built, state, tokens_BT, info, method="logits")[0]

    random = np.random.default_rng(1)
    state = jax.tree.map(
        lambda x: x + (_NOISE * random.standard_normal(x.shape)).astype(x.dtype), built.init(0)
    )
    return Trial(
        built, state, _TOKENS_BT % built.config.vocab_size, jax.jit(train), jax.jit(logits)
    )


def _description(built: Any, trial: Trial) -> tuple[str, list[bytes]]:
    """Return what distinguishes a module's program in training."""
    import jax

    from axcore.module import functional
    from axcore.testing.programs import description

    def run(state: Any, tokens_BT: Any, info: Any, key: Any) -> Any:
        return functional(built, state, tokens_BT, info, method="logits", rng=key, training=True)[0]

    given = (trial.state, trial.tokens, _whole(trial.tokens), jax.random.key(7))
    return description(jax.make_jaxpr(run)(*given))


def _check_same(got: Any, want: Any, message: str) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=message)


def _assert_close(got: Any, want: Any) -> None:
    import jax

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), got, want)
