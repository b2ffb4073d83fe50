"""Speculative decoding: tokens are guessed ahead, and one call of the model checks all of them."""

from axcore.inference.speculation.ngrams import NGramIndex, NGramLookup
from axcore.inference.speculation.verify import Verified, verify

__all__ = ["NGramIndex", "NGramLookup", "Verified", "verify"]
