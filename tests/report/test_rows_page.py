"""The page of held-out rows: it says what was right, runs nothing, and stays small."""

import attrs
import pytest

from axcore.data import Media
from axcore.report import rows_page
from axcore.report.rows_page import rows_page_html


@attrs.frozen(kw_only=True)
class Row:
    media: tuple[Media, ...] = (Media(mime="image/png", content=b"file"),)
    asked: str = ""
    wanted: str
    answered: str

    @property
    def is_right(self):
        return self.wanted == self.answered


def test_texts_are_escaped_and_nothing_runs():
    bad = "<script>alert('ROWS')</script>"
    page = rows_page_html(
        [Row(asked=bad, wanted=bad, answered="a&b")], title=bad, lines=[f"loss {bad}"]
    )
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(&#x27;ROWS&#x27;)") == 5
    assert "default-src 'none'" in page
    assert "a&amp;b" in page


def test_wrong_answers_are_marked_and_counted():
    rows = [Row(wanted="7", answered="7"), Row(wanted="7", answered="1")]
    page = rows_page_html(rows, title="run")
    assert "2 held-out rows, 1 answered right" in page
    assert page.count('<li class="wrong">') == page.count("right is") == 1
    assert page.count("data:image/png;base64,ZmlsZQ==") == 2


def test_a_page_has_a_bounded_size(monkeypatch):
    monkeypatch.setattr(rows_page, "_MOST_BYTES", 10)
    rows = [Row(wanted="a", answered="b" * 10_000)] * 5
    page = rows_page_html(rows, title="run")
    assert "2 held-out rows" in page
    assert "3 more are left out" in page
    assert len(page) < 6000
    assert "9,600 more characters" in page


def test_only_pictures_are_put_into_a_page():
    with pytest.raises(ValueError, match="mime"):
        Media(mime='text/html"><script>', content=b"")
