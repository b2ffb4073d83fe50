"""Guesses are what a search of the whole text finds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from axcore.errors import ConfigError
from axcore.inference.speculation import NGramDrafter, NGramLookup


def naive(text, cfg):
    """Returns the guess of a search backwards, the longest run first."""
    for length in range(cfg.longest, cfg.shortest - 1, -1):
        for start in range(len(text) - length - 1, -1, -1):
            if text[start : start + length] == text[-length:]:
                grown, place = list(text), start + length
                for _ in range(cfg.num_tokens):
                    grown.append(grown[place])
                    place += 1
                return grown[len(text) :]
    return []


@given(text=st.lists(st.integers(0, 2), max_size=25), data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_guess_is_what_followed_the_last_tokens_before(text, data):
    cfg = NGramLookup(num_tokens=5, longest=data.draw(st.integers(2, 4)), shortest=2)
    cut = data.draw(st.integers(0, len(text)))
    index = NGramDrafter(cfg, text[:cut])
    index.push(text[cut:])
    assert index.propose() == naive(text, cfg)


def test_lengths_that_exclude_each_other_are_refused():
    with pytest.raises(ConfigError, match="shortest is 3, and longest 2"):
        NGramLookup(longest=2, shortest=3).check()
