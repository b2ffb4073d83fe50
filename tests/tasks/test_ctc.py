"""CTC: equal to the sum over all alignments, whatever padding there is; and its error rates."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axcore as ax
from axcore.errors import ConfigError
from axcore.module import ArraySpec, BatchSpec, functional
from axcore.tasks import CTC, edit_distance, greedy_labels

VOCAB, FRAMES = 4, 5
TEXTS = ([1, 2], [1, 1], [3], [], [2, 3, 2])


class Given(ax.Module):
    """Its parameters are the logits."""

    @ax.config
    class Config(ax.Module.Config):
        shape: tuple[int, ...] = (len(TEXTS), FRAMES, VOCAB)

    def setup(self, cfg):
        self.weight = ax.Param(cfg.shape, axes=(None,) * 3, init=0.0)

    def forward(self, x, length):
        return self.weight, jnp.arange(self.config.shape[1])[None, :] < length[:, None]


def batch_of(texts, lengths, width=3):
    text = np.full((len(texts), width), 9, np.int32)  # padding may be any number
    mask = np.zeros(text.shape, bool)
    for row, one in enumerate(texts):
        text[row, : len(one)], mask[row, : len(one)] = one, True
    arrays = {"sound": np.zeros((len(texts), 8), np.float32), "sound_length": np.array(lengths)}
    return {
        name: jnp.asarray(one) for name, one in (arrays | {"text": text, "text_mask": mask}).items()
    }


def outputs_of(weight, batch, training=False, **fields):
    module = CTC.Config(**fields).build(model=Given.Config(shape=tuple(weight.shape)))
    return functional(module, {"weight": weight}, batch, training=training)[1]


def collapsed(path):
    return [token for token, _ in itertools.groupby(path) if token != 0]


def by_enumeration(logits, text):
    """-log of the summed probability of all paths that are the text."""
    probs = np.exp(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))
    paths = itertools.product(range(VOCAB), repeat=len(logits))
    frames = range(len(logits))
    return -np.log(sum(probs[frames, path].prod() for path in paths if collapsed(path) == text))


WEIGHT = jnp.asarray(np.random.default_rng(0).normal(size=(len(TEXTS), FRAMES, VOCAB)), jnp.float32)
LENGTHS = (5, 3, 4, 2, 5)


def test_the_loss_is_the_sum_over_all_alignments():
    loss = outputs_of(WEIGHT, batch_of(TEXTS, LENGTHS)).losses["ctc"]
    logits = np.asarray(WEIGHT, np.float64)
    wanted = sum(
        by_enumeration(row[:count], text)
        for row, count, text in zip(logits, LENGTHS, TEXTS, strict=True)
    )
    assert float(loss.sum) == pytest.approx(wanted, rel=1e-5)
    assert float(loss.weight) == sum(map(len, TEXTS))


def losses_and_gradient(weight, batch):
    def total(weight):
        return outputs_of(weight, batch, training=True).total_loss()

    return jax.value_and_grad(total)(weight)


def test_padding_changes_no_loss_and_no_gradient():
    loss, gradient = losses_and_gradient(WEIGHT, batch_of(TEXTS, LENGTHS))
    more = jnp.pad(WEIGHT, ((0, 0), (0, 4), (0, 0)), constant_values=3.0)
    padded, padded_gradient = losses_and_gradient(more, batch_of(TEXTS, LENGTHS, width=7))
    assert float(padded) == pytest.approx(float(loss), rel=1e-6)
    np.testing.assert_allclose(padded_gradient[:, :FRAMES], gradient, atol=1e-6)
    assert not padded_gradient[:, FRAMES:].any()


def test_a_text_without_an_alignment_counts_in_no_loss():
    texts, lengths = [[1, 2], [1, 1]], (3, 2)  # the second needs a blank, and has no frame for it
    batch = batch_of(texts, lengths)
    found = outputs_of(WEIGHT[:2], batch).losses
    alone = outputs_of(WEIGHT[:1], batch_of(texts[:1], lengths[:1])).losses
    assert float(found["ctc"].sum) == pytest.approx(float(alone["ctc"].sum), rel=1e-6)
    assert float(found["ctc"].weight) == 2
    assert float(found["unaligned"].sum) == 1
    assert np.isfinite(losses_and_gradient(WEIGHT[:2], batch)[1]).all()


def test_rows_count_by_their_weights():
    batch = batch_of(TEXTS, LENGTHS)
    batch["row_weights"] = jnp.array([1.0, 0, 0, 0, 0])
    found = outputs_of(WEIGHT, batch).losses
    alone = outputs_of(WEIGHT[:1], batch_of(TEXTS[:1], LENGTHS[:1])).losses
    for name, one in alone.items():
        assert float(found[name].sum) == pytest.approx(float(one.sum), rel=1e-6)
        assert float(found[name].weight) == float(one.weight)


def test_a_greedy_text_is_the_likeliest_path_collapsed():
    paths = [[0, 1, 1, 0, 1], [2, 2, 2, 3, 3], [0, 0, 0, 0, 0]]
    logits = jax.nn.one_hot(jnp.array(paths), VOCAB)
    lengths = jnp.array([5, 4, 5])
    found, count = greedy_labels(logits, jnp.arange(5)[None] < lengths[:, None], 0)
    texts = [row[:size].tolist() for row, size in zip(np.asarray(found), count, strict=True)]
    assert texts == [[1, 1], [2, 3], []]


def levenshtein(a, b):
    if not a or not b:
        return len(a) + len(b)
    rest = (levenshtein(a[1:], b) + 1, levenshtein(a, b[1:]) + 1)
    return min(*rest, levenshtein(a[1:], b[1:]) + (a[0] != b[0]))


def test_edit_distance_equals_its_definition():
    draw = np.random.default_rng(0)
    said, wanted = draw.integers(0, 3, (60, 5)), draw.integers(0, 3, (60, 6))
    num_said, num_wanted = draw.integers(0, 6, 60), draw.integers(0, 7, 60)
    found = edit_distance(*map(jnp.asarray, (said, num_said, wanted, num_wanted)))
    rows = zip(said.tolist(), num_said, wanted.tolist(), num_wanted, strict=True)
    assert found.tolist() == [levenshtein(a[:n], b[:m]) for a, n, b, m in rows]


def test_error_rates_are_of_tokens_and_of_words():
    texts = ["one two", "three four five", ""]
    said = ["one  too", " three five ", ""]
    size = max(map(len, (*said, *texts)))
    paths = np.zeros((3, 2 * size), np.int32)  # a blank behind each, so that neighbours stay two
    for row, one in enumerate(said):
        paths[row, : 2 * len(one) : 2] = list(one.encode())
    batch = batch_of([list(one.encode()) for one in texts], (2 * size,) * 3, width=size)
    logits = jax.nn.one_hot(jnp.asarray(paths), 128)
    found = outputs_of(logits, batch, separator=32).losses
    rate = {name: float(one.sum) / float(one.weight) for name, one in found.items()}
    assert rate["word_error_rate"] == pytest.approx(2 / 5)
    # A space and a letter; two spaces and "four ".
    assert float(found["token_error_rate"].sum) == 2 + 7
    assert float(found["token_error_rate"].weight) == len("".join(texts))


def test_training_measures_no_error_rates():
    found = outputs_of(WEIGHT, batch_of(TEXTS, LENGTHS), training=True).losses
    assert found.keys() == {"ctc", "unaligned"}


@pytest.mark.parametrize(
    ("num_values", "blank", "said"), [(9, 0, "returns 4 logits"), (3, 7, "up to 7")]
)
def test_a_model_with_too_few_logits_is_refused(num_values, blank, said):
    arrays = {
        "sound": ArraySpec(shape=(5, 8), axes=("batch", None), dtype="float32"),
        "sound_length": ArraySpec(shape=(5,), axes=("batch",), dtype="int32"),
        "text": ArraySpec(shape=(5, 3), axes=("batch", None), dtype="int32", num_values=num_values),
        "text_mask": ArraySpec(shape=(5, 3), axes=("batch", None), dtype="bool"),
    }
    module = CTC.Config(blank=blank).build(model=Given.Config())
    with pytest.raises(ConfigError, match=said):
        module.check_batch(BatchSpec(arrays=arrays, unit="row", num_units=5))
    del arrays["text_mask"]
    with pytest.raises(ConfigError, match="CTC reads sound, sound_length, text, text_mask"):
        module.check_batch(BatchSpec(arrays=arrays, unit="row", num_units=5))
