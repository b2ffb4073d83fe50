"""Long work: who hears of it, and what a listener hears."""

import pytest

from axcore.progress import heard_by, working


def test_a_listener_hears_of_begin_parts_and_end():
    heard = []

    def listener(work):
        heard.append((work.name, work.done, work.is_over))

    with heard_by(listener), working("reading", 10) as work:
        work.add(4)
        work.add(6)
    assert heard == [
        ("reading", 0, False),
        ("reading", 4, False),
        ("reading", 10, False),
        ("reading", 10, True),
    ]


def _fail():
    with working("writing", 10):
        raise OSError("the disk is full")


def test_work_that_raises_is_over_and_has_failed():
    heard = []
    with pytest.raises(OSError, match="the disk is full"), heard_by(heard.append):
        _fail()
    assert heard[-1].is_over
    assert heard[-1].has_failed


def test_the_inner_listener_hears_in_place_of_the_outer():
    outer, inner = [], []
    with heard_by(outer.append):
        with heard_by(inner.append), working("reading", 1):
            pass
        assert len(inner) == 2
        assert not outer
        with working("writing", 1):
            pass
    assert [work.name for work in outer] == ["writing", "writing"]
    with working("nobody listens", 1) as work:
        work.add(1)
    assert work.is_over
