"""One process reads from an object store what several need, and sends it to them."""

import re
import signal

import pytest
from object_server import ask
from several_processes import finish
from store_processes import lines_of, names_of, start, told

from axcore.checkpoint import manifest
from axcore.checkpoint.manifest import FileRecord
from axcore.checkpoint.pieces import Piece
from axcore.checkpoint.single_replica import group_files, plan_group


def test_processes_that_need_the_same_files_are_a_group():
    wanted = [["all", "a"], ["all", "a"], ["all", "b"], ["all", "b"]]
    assert group_files(wanted) == [([0, 1], ["a"]), ([0, 1, 2, 3], ["all"]), ([2, 3], ["b"])]


def test_each_piece_is_read_by_one_member_and_bytes_are_divided(monkeypatch):
    monkeypatch.setattr(manifest, "PIECE_BYTES", 10)
    files = {"large": FileRecord(35, ()), "small": FileRecord(4, ()), "empty": FileRecord(0, ())}
    group = plan_group([3, 7], files, turn=1)
    first, second = group.pieces
    assert second[0] == Piece("large", 0, 10, 0)
    assert sorted((one.object_name, one.num_bytes) for one in first + second) == [
        ("empty", 0), ("large.00000", 10), ("large.00001", 10), ("large.00002", 10),
        ("large.00003", 5), ("small", 4),
    ]  # fmt: skip
    assert [sum(one.num_bytes for one in each) for each in group.pieces] == [19, 20]


def restore(proxy, disks, *, count, replicas, is_single, task=None):
    """Restores in new processes; returns the bytes of arrays that each has read."""
    proxy.read.clear()
    processes = start(
        proxy, disks, count=count, devices=4 // count, restores=True,
        more={"REPLICAS": str(replicas)}, **{"single replica": is_single, **(task or {})},
    )  # fmt: skip
    for one in told(processes):
        assert (one["step"], one["is right"], one["warnings"]) == (1, True, [])
    assert all(not any(disk.iterdir()) for disk in disks.iterdir())
    return [proxy.read[f"process-{index}"] for index in range(count)]


def stored_bytes(proxy):
    names = [name for name in names_of(proxy) if "/arrays/" in name]
    return sum(len(ask(proxy.target, "GET", f"/{proxy.bucket}/{name}")[2]) for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("replicas", [4, 2])
def test_every_byte_is_read_once_by_all_processes_together(proxy, tmp_path, count, replicas):
    more = {"REPLICAS": str(replicas)}
    told(start(proxy, tmp_path / "a", 1, count=count, devices=4 // count, more=more))
    total = stored_bytes(proxy)
    read = restore(proxy, tmp_path / "b", count=count, replicas=replicas, is_single=True)
    assert sum(read) == total
    # With two replicas over four processes, two need each shard.
    ordinary = restore(proxy, tmp_path / "c", count=count, replicas=replicas, is_single=False)
    assert sum(ordinary) > 1.9 * total


@pytest.mark.slow
def test_another_number_of_processes_restores_with_a_single_replica(proxy, tmp_path):
    told(start(proxy, tmp_path / "a", 1))
    total = stored_bytes(proxy)
    for count, replicas in ((4, 1), (4, 4), (2, 2)):
        disks = tmp_path / f"b{count}{replicas}"
        read = restore(proxy, disks, count=count, replicas=replicas, is_single=True)
        assert sum(read) == total


@pytest.mark.slow
def test_files_of_many_pieces_are_sent_in_many_rounds(proxy, tmp_path):
    small = {"piece bytes": 9000, "round bytes": 4000}
    told(start(proxy, tmp_path / "a", 1, more={"REPLICAS": "4"}, **small))
    assert len([name for name in names_of(proxy) if "/d/" in name]) > 10
    read = restore(proxy, tmp_path / "b", count=2, replicas=4, is_single=True, task=small)
    assert sum(read) == stored_bytes(proxy)
    assert max(read) < 1.2 * min(read)


@pytest.mark.slow
def test_an_error_of_the_process_that_reads_is_raised_in_all(proxy, tmp_path):
    more = {"REPLICAS": "4", "AWS_MAX_ATTEMPTS": "1"}
    told(start(proxy, tmp_path / "a", 1, more=more))
    proxy.fault = lambda method, path: (
        "busy" if method == "GET" and "/arrays/process_1/" in path else None
    )
    task = {"restores": True, "single replica": True}
    ended = [finish(one, 200) for one in start(proxy, tmp_path / "b", more=more, **task)]
    said = r"process (\d), which reads for others, failed: s3://.* cannot read step_00000001"
    assert [one.exit_code for one in ended] == [7, 7]
    named = [re.search(said, one.stdout)[1] for one in ended]
    # Where both failed to read, each raises its own error.
    assert named in (["0", "0"], ["1", "1"], ["0", "1"])
    assert [list((tmp_path / "b" / index).iterdir()) for index in "01"] == [[], []]


@pytest.mark.slow
def test_a_process_killed_while_it_receives_leaves_nobody_waiting(proxy, tmp_path):
    more = {"REPLICAS": "4"}
    told(start(proxy, tmp_path / "a", 1, more=more))
    task = {"restores": True, "single replica": True, "dies at": "restore", "who": 1}
    task["before"] = ("open", "/manifest.ocdbt")
    first, second = (finish(one, 200) for one in start(proxy, tmp_path / "b", more=more, **task))
    assert second.exit_code == -signal.SIGKILL
    assert first.exit_code not in (0, -signal.SIGKILL)
    restore(proxy, tmp_path / "b", count=2, replicas=4, is_single=True)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["flipped", "lost", "cut", "emptied"])
def test_damage_of_what_one_process_reads_makes_all_go_back(proxy, tmp_path, damage):
    more = {"REPLICAS": "4"}
    told(start(proxy, tmp_path / "a", 1, 2, more=more))
    parts = [f"/{proxy.bucket}/{one}" for one in names_of(proxy) if "2-" in one and "/d/" in one]
    name = max(parts, key=lambda one: len(ask(proxy.target, "GET", one)[2]))
    content = bytearray(ask(proxy.target, "GET", name)[2])
    content[len(content) // 2] ^= 1
    changed = {"flipped": content, "cut": content[:-9], "emptied": b""}
    if damage == "lost":
        ask(proxy.target, "DELETE", name)
    else:
        ask(proxy.target, "PUT", name, bytes(changed[damage]))
    task = {"restores": True, "single replica": True}
    found = [lines_of(finish(one)) for one in start(proxy, tmp_path / "b", 3, more=more, **task)]
    for restored, saved in found:
        assert (restored["step"], restored["is right"], saved["steps"]) == (1, True, [1, 3])
    (text,) = found[0][0]["warnings"]
    size = len(content)
    assert (
        f"{name.partition('/arrays/')[2]} "
        + {
            "flipped": "has changed since it was saved",
            "lost": "is missing",
            "cut": f"has {size - 9} bytes; it was saved with {size}",
            "emptied": f"has 0 bytes; it was saved with {size}",
        }[damage]
        in text
    )
