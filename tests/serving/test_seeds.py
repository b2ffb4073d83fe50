"""Seeds of answers: the request's, or what follows from the server's."""

from axcore.serving.config import Limits
from axcore.serving.request_parser import RequestParser
from axcore.serving.request_settings import Seeds, read_settings


def settings(**body):
    return read_settings(RequestParser(body), Limits())


def test_requests_without_a_seed_draw_differently_and_alike_after_each_start():
    one, other = Seeds(7), Seeds(7)
    drawn = [tuple(one.of(settings(n=2))) for _ in range(20)]
    assert drawn == [tuple(other.of(settings(n=2))) for _ in range(20)]
    assert len({seed for pair in drawn for seed in pair}) == 40
    assert drawn[:3] != [tuple(Seeds(8).of(settings(n=2))) for _ in range(3)]


def test_a_request_with_a_seed_takes_none_of_the_servers():
    one, other = Seeds(7), Seeds(7)
    assert one.of(settings(seed=5, n=3))[:1] == one.of(settings(seed=5)) == [5]
    assert one.of(settings()) == other.of(settings())


def test_a_server_without_a_seed_draws_differently_each_time_it_starts():
    first, second = Seeds(None), Seeds(None)
    assert [first.of(settings()) for _ in range(4)] != [second.of(settings()) for _ in range(4)]
