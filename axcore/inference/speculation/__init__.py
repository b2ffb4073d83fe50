"""Speculative decoding: tokens are guessed ahead, and one call of the model checks all of them."""

from axcore.inference.speculation.draft import Draft, DraftModel, DraftPlaces
from axcore.inference.speculation.ngrams import NGramIndex, NGramLookup
from axcore.inference.speculation.verify import Verified, verify

Guesses = NGramIndex | DraftPlaces
"""What guesses the next tokens of one text."""

__all__ = [
    "Draft",
    "DraftModel",
    "DraftPlaces",
    "Guesses",
    "NGramIndex",
    "NGramLookup",
    "Verified",
    "verify",
]
