"""A snapshot in host memory is restored bit by bit, or not at all."""

import json
import socket

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from axcore.checkpoint import CheckpointWarning, MemorySnapshots
from axcore.checkpoint.manifest import read_manifest, write_manifest
from axcore.checkpoint.peer_replicas import Hosts, PeerExchange
from axcore.errors import CheckpointError

RUN = {"id": "0123", "config": "a", "data": "b"}


@pytest.fixture(scope="module")
def state():
    """Leaves that are split, copied to all devices, of two bytes, and without dimensions."""
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    rng = np.random.default_rng(0)

    def on(value, *axes):
        return jax.device_put(value, NamedSharding(mesh, PartitionSpec(*axes)))

    return {
        "split": on(rng.normal(size=(8, 6)).astype(np.float32), "x", "y"),
        "copied": on(rng.normal(size=(5,)).astype(jnp.bfloat16)),
        "step": on(np.int32(7)),
    }


@pytest.fixture
def snapshots(tmp_path):
    """Makes the snapshots of a run as one start of it has them."""
    made = []

    def start(run=RUN, rewinds=0):
        cfg = MemorySnapshots.Config(every_steps=5, directory=str(tmp_path / "host_{process}"))
        made.append(MemorySnapshots(cfg, run))
        made[-1].open(rewinds)
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture
def kept(snapshots, state):
    """The folder of a snapshot of step 10, whose process has ended."""
    first = snapshots()
    first.take(10, state, {"data": 3})
    first.wait()
    first.close()
    return first.directory / "process_0/step_00000010"


def template(state):
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )


def test_the_next_process_restores_every_bit_into_the_same_sharding(kept, snapshots, state):
    restored = snapshots().restore(template(state), newer_than=9)
    assert (restored.step, restored.extra) == (10, {"data": 3})
    for name, wanted in state.items():
        assert restored.state[name].sharding == wanted.sharding
        assert np.asarray(restored.state[name]).tobytes() == np.asarray(wanted).tobytes()


def test_a_snapshot_outlives_the_donation_of_its_state(snapshots, state):
    change = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    like = template(state)
    moving = change(jax.tree.map(jnp.copy, state))
    wanted = jax.tree.map(lambda x: np.array(x), moving)
    first = snapshots()
    first.take(5, moving, {})
    jax.block_until_ready(change(change(moving)))
    first.wait()
    found = first.restore(like, newer_than=0).state
    assert all(np.asarray(found[name]).tobytes() == wanted[name].tobytes() for name in wanted)


def test_one_step_stays_when_the_next_is_whole(snapshots, state):
    first = snapshots()
    for step in (5, 10):
        first.take(step, state, {})
    first.wait()
    assert [path.name for path in first.directory.glob("process_0/step*")] == ["step_00000010"]


def test_a_checkpoint_of_that_step_or_a_newer_one_is_preferred(kept, snapshots, state):
    assert snapshots().restore(template(state), newer_than=10) is None


@pytest.mark.parametrize("name", ["manifest.json", "arrays/process_0/manifest.ocdbt", "d/*"])
def test_a_flipped_bit_is_noticed_and_nothing_restored(kept, snapshots, state, name):
    # How many files a database has is TensorStore's business.
    path = max(kept.rglob(name), key=lambda one: one.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)
    found = snapshots()
    with pytest.warns(CheckpointWarning, match=f"{path.name} has changed since it was saved"):
        assert found.restore(template(state), newer_than=0) is None


def test_what_a_killed_process_was_writing_is_no_snapshot(kept, snapshots, state):
    kept.rename(kept.with_name(f"{kept.name}.incomplete"))
    found = snapshots()
    assert found.restore(template(state), newer_than=0) is None
    assert not kept.with_name(f"{kept.name}.incomplete").exists()


@pytest.mark.parametrize("other", [{"run": RUN | {"config": "other"}}, {"rewinds": 1}])
def test_a_snapshot_of_another_config_or_history_is_not_taken(kept, snapshots, state, other):
    assert snapshots(**other).restore(template(state), newer_than=0) is None


def test_a_snapshot_is_restored_into_another_sharding(kept, snapshots, state):
    other = template(state)
    half = NamedSharding(state["split"].sharding.mesh, PartitionSpec("y"))
    other["split"] = other["split"].update(sharding=half)
    found = snapshots().restore(other, newer_than=0).state["split"]
    assert found.sharding == half
    assert np.array_equal(found, state["split"])


def test_a_snapshot_of_an_older_version_is_not_taken(kept, snapshots, state):
    write_manifest(kept, attrs.evolve(read_manifest(kept), grids={}))
    assert snapshots().restore(template(state), newer_than=0) is None


def test_a_run_that_goes_back_forgets_its_snapshots(kept, snapshots, state):
    found = snapshots()
    found.delete_all(rewinds=1)
    assert not kept.exists()


def test_the_memory_is_given_back_when_a_run_has_ended_well(kept, snapshots):
    found = snapshots()
    found.delete()
    assert not found.directory.exists()


def test_a_directory_that_a_live_process_uses_is_refused(snapshots):
    snapshots()
    with pytest.raises(CheckpointError, match="already saving checkpoints here"):
        snapshots()


def test_memory_that_is_full_costs_a_warning_and_the_snapshot_before_stays(snapshots, state):
    first = snapshots()
    first.take(5, state, {})
    first.wait()
    blocked = first.directory / "process_0/step_00000010.incomplete"
    blocked.write_text("no directory", encoding="utf-8")
    first.take(10, state, {})
    with pytest.warns(CheckpointWarning, match="no snapshot of step 10 is kept: process 0: "):
        first.wait()
    assert first.restore(template(state), newer_than=0).step == 5


# -- Neighbours --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "peers"),
    [
        ("aa", [None, None]),
        ("ab", [1, 0]),
        ("abc", [1, 2, 0]),
        ("aabb", [2, 3, 0, 1]),
        ("abab", [1, 0, 3, 2]),
        ("aab", [2, 2, 0]),
    ],
)
def test_copies_go_to_the_next_host_each_process_to_one_of_its_own(hosts, peers):
    found = Hosts(tuple(hosts))
    assert [found.peer_of(process) for process in range(len(hosts))] == peers


@pytest.fixture
def exchange(tmp_path):
    """An exchange with itself, that keeps what it gets in a folder."""
    (tmp_path / "got").mkdir()
    made = PeerExchange("host", lambda process, step, write: write(tmp_path / "got"))
    yield made
    made.close()


FILES = ("arrays/process_0/d/0a", "manifest.json")


@pytest.fixture
def part(tmp_path):
    folder = tmp_path / "part"
    (folder / FILES[0]).parent.mkdir(parents=True)
    for name in FILES:
        (folder / name).write_bytes(name.encode() * 99_999)
    return folder


def test_a_copy_arrives_whole(exchange, part, tmp_path):
    exchange.send(0, 0, 5, part)
    for name in FILES:
        assert (tmp_path / "got" / name).read_bytes() == (part / name).read_bytes()


def ask(exchange, head, rest=b""):
    """Returns what an exchange answers to a line."""
    _, port, secret = exchange._peers[0]
    with socket.create_connection(("localhost", port), 30) as connection:
        connection.sendall(json.dumps({"secret": secret} | head).encode() + b"\n" + rest)
        connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").readline()


def test_a_copy_that_is_cut_off_is_refused_and_the_next_one_taken(exchange, part):
    cut = ask(exchange, {"process": 0, "step": 5, "sizes": {"d/0a": 100}}, b"x" * 50)
    assert cut == b"ConnectionError: d/0a was cut off, 50 bytes before its end\n"
    exchange.send(0, 0, 5, part)


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "d/../../outside"])
def test_a_copy_writes_nowhere_else(exchange, tmp_path, name):
    said = ask(exchange, {"process": 0, "step": 5, "sizes": {name: 1}}, b"x")
    assert said == f"ValueError: {name} is not a path in a snapshot\n".encode()
    assert list((tmp_path / "got").iterdir()) == []


def test_who_does_not_know_the_secret_is_hung_up_on(exchange, tmp_path):
    assert ask(exchange, {"secret": "guess", "process": 0, "step": 5, "sizes": {"d": 0}}) == b""
    assert list((tmp_path / "got").iterdir()) == []
