"""`FillInTheMiddle`: a document's middle moves to its end, so that a model learns to fill gaps."""

import attrs
import numpy as np

from axcore.config import REQUIRED, NonNegativeInt, config
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
        """Returns the document with its parts in another order, or as it is."""
        cfg, rng = self.config, tools.rng(self.config.seed, document)
        is_changed, is_suffix_first = rng.random(2) < (cfg.rate, cfg.suffix_first_rate)
        if not is_changed or document.tokens is not None:
            return document
        a, b = sorted(rng.integers(0, len(document.text) + 1, 2).tolist())
        text = document.text
        parts = tools.tokenizer.encode_many([text[:a], text[a:b], text[b:]])
        prefix, middle, suffix = ([int(token) for token in part] for part in parts)
        before, after = [cfg.prefix_id], [cfg.suffix_id, *suffix, cfg.middle_id]
        order = [*before, *after, *prefix] if is_suffix_first else [*before, *prefix, *after]
        tokens = np.array([*order, *middle], np.int64)
        return attrs.evolve(document, tokens=tools.tokenizer.framed(tokens))
