"""HTML as its reader sees it: the words, with the classes around each."""

from html.parser import HTMLParser
from typing import NamedTuple

WITHOUT_END = ("img", "br", "link", "meta", "input")
OUTSIDE = ("src", "href", "srcset", "data", "action")


class Word(NamedTuple):
    """Text of a page, and the tags and classes of the elements around it."""

    text: str
    around: tuple[str, ...]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[Word] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in WITHOUT_END, f"<{tag}>"
        assert tag != "script"
        values = dict(attrs)
        assert not values.keys() & set(OUTSIDE), values
        is_open = ["open"] * ("open" in values)
        self.open.append(" ".join([tag, values.get("class") or "", *is_open]))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().split()[0] == tag

    def handle_data(self, data: str) -> None:
        if not any(one.startswith("style") for one in self.open) and data.strip():
            self.words.append(Word(data.strip(), tuple(self.open)))


def words_of(page: str) -> list[Word]:
    """Returns the words of well-formed HTML that needs no other file and runs nothing."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    assert "url(" not in page
    assert "@import" not in page
    return reader.words
