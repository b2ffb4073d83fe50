"""Transforms that teach a decoder to fill gaps.

`FillInTheMiddle` moves a document's middle to its end; `SpanCorruption` takes out random spans,
which the model has to write.
"""

import attrs
import numpy as np
from numpy.typing import NDArray

from axcore.config import REQUIRED, Fraction, NonNegativeInt, PositiveInt, config
from axcore.data.document import Document
from axcore.data.transforms.transform import Dropped, Transform, TransformTools


class FillInTheMiddle(Transform):
    """Cuts a text at two random characters and puts the parts in another order, with marks between.

    A document is `PREFIX prefix SUFFIX suffix MIDDLE middle`, or, suffix first,
    `PREFIX SUFFIX suffix MIDDLE prefix middle`; the loss counts all of it.

    Source: Bavarian et al. 2022, arXiv:2207.14255, sections 3 and 3.1.
    """

    @config
    class Config(Transform.Config):
        """How often, and with which marks.

        Attributes:
            prefix_id: The token that begins the prefix.
            suffix_id: The token that begins the suffix.
            middle_id: The token that begins the middle.
            rate: The share of documents that are changed.
            suffix_first_rate: The share of those that have the suffix first.
            seed: Decides which documents, and where they are cut.
        """

        prefix_id: NonNegativeInt = REQUIRED
        suffix_id: NonNegativeInt = REQUIRED
        middle_id: NonNegativeInt = REQUIRED
        rate: float = 0.5
        suffix_first_rate: float = 0.5
        seed: int = 0

    def apply(self, document: Document, tools: TransformTools) -> Document | Dropped:
        """Return the document with its parts in another order, or as it is."""
        cfg, rng = self.config, tools.rng(self.config.seed, document)
        # Both numbers are sampled for every document, so that a
        # change of one rate leaves the other samples as they were.
        is_changed, is_suffix_first = rng.random(2) < (cfg.rate, cfg.suffix_first_rate)
        if not is_changed or document.tokens is not None:
            return document
        # In characters, as in the paper: cuts between
        # tokens only would never ask for the end of a word.
        a, b = sorted(rng.integers(0, len(document.text) + 1, 2).tolist())
        text = document.text
        parts = tools.tokenizer.encode_many([text[:a], text[a:b], text[b:]])
        prefix, middle, suffix = ([int(token) for token in part] for part in parts)
        before, after = [cfg.prefix_id], [cfg.suffix_id, *suffix, cfg.middle_id]
        order = [*before, *after, *prefix] if is_suffix_first else [*before, *prefix, *after]
        tokens = np.array([*order, *middle], np.int64)
        return attrs.evolve(document, tokens=tools.tokenizer.framed(tokens))


class SpanCorruption(Transform):
    """Replaces spans by marks, and puts the spans, each after its mark, behind the text.

    The loss counts what is behind the text, and its end. Where nothing can be taken out, a document
    stays as it is.

    Source: Raffel et al. 2020, arXiv:1910.10683, section 3.1.4.
    Differs: Text and spans are one document, which a decoder reads causally.
    """

    @config
    class Config(Transform.Config):
        """How much, and with which marks.

        Attributes:
            first_sentinel: The first of the marks; others follow it.
            num_sentinels: How many marks there are; a document has no more spans, but longer ones.
            noise_density: The share of the tokens that is taken out.
            mean_span_length: Tokens of a span, on average.
            seed: Decides which.
        """

        first_sentinel: NonNegativeInt = REQUIRED
        num_sentinels: PositiveInt = 100
        noise_density: Fraction = 0.15
        mean_span_length: PositiveInt = 3
        seed: int = 0

    makes_loss_mask = True

    def apply(self, document: Document, tools: TransformTools) -> Document | Dropped:
        """Return the document with spans behind it."""
        if document.tokens is not None:
            return document
        tokens = tools.tokenizer.encode(document.text)
        span_N = self._spans(len(tokens), tools.rng(self.config.seed, document))
        if not span_N.any():
            return document
        begins_N = span_N & ~np.concatenate([[False], span_N[:-1]])
        mark_N = self.config.first_sentinel + np.cumsum(begins_N) - 1
        text = np.where(begins_N, mark_N, tokens)[~span_N | begins_N]
        spans = np.insert(tokens, np.flatnonzero(begins_N), mark_N[begins_N])
        in_span = np.insert(span_N, np.flatnonzero(begins_N), True)
        spans = spans[in_span]
        whole = tools.tokenizer.framed(np.concatenate([text, spans]).astype(np.int64))
        num_counted = len(spans) + 1  # the end of the document, too
        return attrs.evolve(
            document, tokens=whole, loss_weights=np.arange(len(whole)) >= len(whole) - num_counted
        )

    def _spans(self, length: int, rng: np.random.Generator) -> NDArray[np.bool_]:
        """Return [N] which tokens are taken out; the first one never is."""
        cfg = self.config
        noise = min(round(length * cfg.noise_density), length - 1)
        count = min(max(round(noise / cfg.mean_span_length), 1), cfg.num_sentinels, length - noise)
        if noise < 1:
            return np.zeros(length, np.bool_)
        left, taken = _parts(length - noise, count, rng), _parts(noise, count, rng)
        lengths = np.stack([left, taken], axis=1).reshape(-1)
        return np.repeat(np.tile([False, True], count), lengths)


def _parts(total: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return `count` positive integers of that sum, each such list equally likely."""
    cuts = np.sort(rng.choice(total - 1, count - 1, replace=False)) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))
