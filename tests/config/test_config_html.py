"""What notebooks show of a config: a tree that is open where it differs from the defaults."""

from config_trees import FeedForward, Net
from html_words import Word, words_of

HOSTILE = "</style><script>alert('x')</script>&lt;"


def around(words: list[Word], text: str) -> str:
    (found,) = [word for word in words if word.text == text]
    return " ".join(found.around)


def test_what_differs_is_open_and_colored_and_the_rest_is_folded():
    words = words_of(Net.Config(dim=4, extra=FeedForward.Config(hidden_dim=7))._repr_html_())
    assert [word.text for word in words[:2]] == ["Net", "config;"]
    assert "accent" in around(words, "7")
    assert "details  open" in around(words, "7")
    assert "soft" in around(words, "'net'")
    assert "details  open" not in around(words, "'net'")
    assert "7 at their default" in [word.text for word in words]


def test_all_fields_of_the_tree_are_there_and_one_to_fill_in_says_so():
    words = [word.text for word in words_of(Net.Config(dim=4)._repr_html_())]
    assert words.count("hidden_dim") == 2
    assert words.count("has_bias") == 2
    assert {"16", "rules", "{'embed': ('data',)}", "[1]"} <= set(words)
    required = [word for word in words_of(Net.Config()._repr_html_()) if word.text == "REQUIRED"]
    assert all("bad" in " ".join(word.around) for word in required)
    assert len(required) > words.count("REQUIRED")


def test_values_cannot_become_part_of_the_page():
    words = words_of(Net.Config(dim=1, name=HOSTILE)._repr_html_())
    assert repr(HOSTILE) in [word.text for word in words]
