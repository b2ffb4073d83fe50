"""Processes find one another, or every one of them learns who is missing."""

import socket
import threading
import time

import pytest
from several_processes import free_address

from axcore.distributed.rendezvous import rendezvous
from axcore.errors import AxcoreError, ConfigError
from axcore.tcp import split_address


def call_all(numbers, *, count, limit_s=5.0, counts=None):
    """Holds a rendezvous among threads; returns what each raised, or None, in their order."""
    address, ends = free_address(), [None] * len(numbers)

    def take_part(place, index):
        told = (counts or {}).get(place, count)
        try:
            rendezvous(address, process_count=told, process_index=index, limit_s=limit_s)
        except AxcoreError as error:
            ends[place] = error

    threads = [threading.Thread(target=take_part, args=pair) for pair in enumerate(numbers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return ends


def test_all_pass_where_all_are_there():
    began = time.monotonic()
    assert call_all([2, 0, 3, 1], count=4, limit_s=60) == [None] * 4
    assert time.monotonic() - began < 30


def test_the_port_is_free_again_at_once():
    address = free_address()
    other = threading.Thread(
        target=rendezvous,
        args=(address,),
        kwargs={"process_count": 2, "process_index": 1, "limit_s": 60},
    )
    other.start()
    rendezvous(address, process_count=2, process_index=0, limit_s=60)
    socket.create_server(("", split_address(address)[1])).close()
    other.join(60)


def test_missing_processes_are_named_to_everyone_who_came():
    first, second = call_all([0, 2], count=4)
    assert str(first) == str(second)
    assert "processes 1, 3 of 4 did not reach 'rendezvous' within 5 s" in first.what
    assert "--join-timeout" in first.hint


def test_others_are_told_that_process_0_is_missing():
    (error,) = call_all([1], count=2, limit_s=2.0)
    assert "process 0 of 2 did not reach 'rendezvous' within 2 s" in error.what
    assert "refused" in error.what


def test_two_processes_of_one_number_are_refused():
    errors = call_all([0, 1, 1], count=3, limit_s=30)
    assert all("two processes of this run are number 1" in error.what for error in errors)


def test_processes_that_count_differently_are_refused():
    errors = call_all([0, 1], count=2, limit_s=30, counts={1: 4})
    assert all("is one of 4 processes, but process 0 is one of 2" in one.what for one in errors)


def test_a_port_in_use_is_named():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AxcoreError, match=f"process 0 cannot listen on port {port}"):
            rendezvous(f"localhost:{port}", process_count=2, process_index=0, limit_s=1)


def test_a_stranger_on_the_port_is_passed_over():
    address = free_address()
    ends = []

    def take_part(index):
        rendezvous(address, process_count=2, process_index=index, limit_s=60)
        ends.append(index)

    first = threading.Thread(target=take_part, args=(0,))
    first.start()
    while True:
        try:
            with socket.create_connection(split_address(address)) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n")
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    take_part(1)
    first.join(60)
    assert sorted(ends) == [0, 1]


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:x", "host:0", "host:99999"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ConfigError, match="expected host:port of process 0"):
        split_address(address)


def test_an_address_may_be_a_name_or_of_either_version_of_ip():
    assert split_address("node-0:29400") == ("node-0", 29400)
    assert split_address("10.0.0.1:80") == ("10.0.0.1", 80)
    assert split_address("[fe80::1]:80") == ("fe80::1", 80)
