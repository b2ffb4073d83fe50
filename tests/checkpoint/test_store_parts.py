"""Several processes keep steps in an object store, each from a disk of its own."""

import collections
import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
import uuid

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from object_server import ask
from several_processes import finish
from store_processes import lines_of, names_of, start, told

from axcore.checkpoint import Checkpointer, CheckpointWarning
from axcore.checkpoint.manifest import Manifest, record_files, write_manifest
from axcore.checkpoint.object_store import ObjectSteps, ObjectStore
from axcore.checkpoint.replicated_storage import ReplicatedStorage
from axcore.checkpoint.steps import StepDirectories
from axcore.checkpoint.store_parts import StagingFolder, StoreParts

# -- In one process, with a store in its memory ----------------------------------------------------


@pytest.fixture
def two(tmp_path):
    """What two processes have of a store: each its own object, and a disk."""
    url = f"memory://{uuid.uuid4().hex}"
    return [StoreParts(tmp_path / disk, ObjectSteps(ObjectStore(url))) for disk in "ab"]


def write_parts(two, step):
    """Does what `StepSave` does, up to the commit."""
    two[0].begin(step)
    files = {}
    for index, one in enumerate(two):
        one.enter(step, two[0].written_as(step))
        part = one.staging_directory(step) / f"arrays/process_{index}"
        part.mkdir(parents=True)
        (part / "d").write_text(f"part {index} of {step}")
        own = record_files(one.staging_directory(step))
        one.share(step, own)
        files.update(own)
    databases = ("arrays/process_0", "arrays/process_1")
    write_manifest(
        two[0].staging_directory(step),
        Manifest(step=step, leaves={}, files=files, extra={}, databases=databases, grids={}),
    )
    return files


def save_parts(two, step):
    files = write_parts(two, step)
    two[0].commit(step)
    for one in two:
        one.leave(step)
    return files


def files_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))


def test_a_step_is_none_before_its_index_and_leaves_no_file_on_any_disk(two):
    write_parts(two, 1)
    assert two[1].committed() == ()
    two[0].commit(1)
    for one in two:
        one.leave(1)
    assert [one.committed() for one in two] == [(1,), (1,)]
    assert [list(one.root.iterdir()) for one in two] == [[], []]


def test_the_index_names_the_files_of_all_processes_with_their_checksums(two):
    files = save_parts(two, 1)
    durable = two[1]._durable
    named = json.loads(durable._store.read(durable.prefix(1) + ".json"))["files"]
    assert set(named) == {*files, "manifest.json"}
    for name, one in files.items():
        assert named[name] == [one.num_bytes, *one.crc32]


def test_a_process_fetches_what_it_asks_for_and_once(two):
    files = save_parts(two, 1)
    two[0].prepare(1)
    prefix, wanted = two[0].stored_as(1), {"arrays/process_0/d": files["arrays/process_0/d"]}
    assert two[1].fetch(1, prefix, wanted) == wanted
    assert two[1].fetch(1, prefix, wanted) == {}
    assert [path.name for path in two[1].path(1).rglob("*") if path.is_file()] == ["d"]
    two[1].release(1)
    assert list(two[1].root.iterdir()) == []


def test_a_step_that_was_saved_again_is_fetched_again(two):
    files = save_parts(two, 1)
    two[0].prepare(1)
    two[1].fetch(1, two[0].stored_as(1), files)
    first = two[1].path(1)
    save_parts(two, 1)
    two[0].prepare(1)
    assert two[1].fetch(1, two[0].stored_as(1), files) == files
    assert not first.exists()


def test_an_upload_without_an_index_is_removed_by_the_next_run_that_saves(two):
    save_parts(two, 1)
    write_parts(two, 2)
    names = two[1]._durable._store.names
    assert len([name for name in names() if name.startswith("step_00000002")]) == 1
    lock = two[1].lock()
    assert not [name for name in names() if name.startswith("step_00000002")]
    assert two[1].committed() == (1,)
    lock.release()


def test_steps_that_one_process_kept_on_a_disk_end_with_a_run_of_several(two, tmp_path):
    local, durable = StepDirectories(tmp_path / "a"), two[1]._durable
    one = ReplicatedStorage(local, durable)
    lock = one.lock()
    for step in (1, 2):
        one.begin(step)
        one.commit(step)
    one.replicate(1)  # and not 2, where the store did not answer
    lock.release()
    with pytest.warns(CheckpointWarning, match="step 2 was never uploaded, and is renamed"):
        two[0].lock().release()
    assert one.committed() == (1,)
    assert local.committed() == ()
    assert (tmp_path / "a/step_00000002.quarantined").exists()


def test_the_folder_of_a_killed_process_goes_and_that_of_a_live_one_stays(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from axcore.checkpoint.store_parts import StagingFolder\n"
        f"folder = StagingFolder(Path({str(tmp_path)!r})); (folder.path / 'big').write_text('1')\n"
        "print(folder.path.name, flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as other:
        theirs = tmp_path / other.stdout.readline().strip()
        first = StagingFolder(tmp_path)
        assert theirs.exists()
        other.kill()
    second = StagingFolder(tmp_path)
    assert set(tmp_path.iterdir()) == {first.path, second.path}


# -- In several processes, with a server -----------------------------------------------------------


def check_restores(proxy, disks, step, *, count=2, devices=2):
    found = told(start(proxy, disks, count=count, devices=devices, restores=True))
    for one in found:
        assert (one["step"], one["extra"], one["is right"]) == (step, {"step": step}, True)
        assert (one["rows"], one["warnings"]) == (64 // count, [])


def values_of(step):
    return np.random.default_rng(step).standard_normal((64, 512), dtype=np.float32)


def check_one_process_restores(proxy, disk, steps):
    """Restores each step in this one process, cut otherwise than it was saved."""
    mesh = jax.make_mesh((8,), ("x",), devices=jax.devices()[:8])
    columns, whole = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in ((None, "x"), ()))
    wanted = {
        "w": jax.ShapeDtypeStruct((64, 512), jnp.float32, sharding=columns),
        "step": jax.ShapeDtypeStruct((), jnp.int32, sharding=whole),
    }
    directory = f"s3://{proxy.bucket}/run?staging={disk}"
    checkpoints = Checkpointer.Config().build(directory=directory)
    assert checkpoints.steps() == tuple(steps)
    for step in steps:
        restored = checkpoints.restore(wanted, step=step)
        assert np.array_equal(restored.state["w"], values_of(step))
        assert restored.extra == {"step": step}


@pytest.mark.slow
@pytest.mark.parametrize(("count", "others"), [(2, (2, 4, 1)), (4, (4, 2))])
def test_what_processes_without_a_shared_disk_save_any_number_restores(
    proxy, tmp_path, count, others
):
    found = told(start(proxy, tmp_path / "a", 1, 2, count=count, devices=4 // count))
    assert [one["left"] for one in found] == [[]] * count
    for other in others:
        check_restores(proxy, tmp_path / f"b{other}", 2, count=other, devices=4 // other)
    check_one_process_restores(proxy, tmp_path / "c", [1, 2])


@pytest.mark.slow
def test_a_process_downloads_its_own_shards_and_what_all_hold(proxy, tmp_path):
    told(start(proxy, tmp_path / "a", 1))
    asked = []
    proxy.fault = lambda method, path: asked.append((method, path.partition("?")[0]))
    check_restores(proxy, tmp_path / "b", 1)
    read = [path for method, path in asked if method == "GET" and "/arrays/" in path]
    held = {f"/{proxy.bucket}/{name}" for name in names_of(proxy) if "/arrays/" in name}
    asked_for = collections.Counter(read)
    assert asked_for.keys() == held
    # The number of the step is on all devices, and apart from the shards.
    assert {name: asked_for[name] for name in held} == {
        name: 2 if "/process_0_1/" in name else 1 for name in held
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["busy", "cut upload", "cut answer"])
def test_faults_that_pass_cost_no_process_a_warning(proxy, tmp_path, kind):
    proxy.fault, left = first_of(kind, "PUT", "GET", times=4)
    found = told(start(proxy, tmp_path / "a", 1, 2))
    assert left == [0]
    assert [(one["error"], one["warnings"]) for one in found] == [(None, [])] * 2
    proxy.fault, left = first_of("busy" if kind == "busy" else "cut answer", "GET", times=4)
    check_restores(proxy, tmp_path / "b", 2)
    assert left == [0]


@pytest.mark.slow
def test_arrays_are_loaded_one_by_one_and_compared_with_what_was_saved(proxy, tmp_path):
    told(start(proxy, tmp_path / "a", 1))
    for count in (2, 4):
        found = told(start(proxy, tmp_path / "b", count=count, devices=4 // count, loads=1))
        assert found == [{"loaded": True}] * count
    name = next(one for one in names_of(proxy) if "/arrays/process_1/d/" in one)
    proxy.fault = lambda method, path: "cut answer" if method == "GET" and name in path else None
    ended = [finish(one) for one in start(proxy, tmp_path / "c", loads=1)]
    assert [one.exit_code for one in ended] == [7, 7]


def first_of(kind, *methods, times):
    """Returns what makes so many requests for objects fail, and how many are left."""
    left, counting = [times], threading.Lock()

    def fault(method, path):
        with counting:
            if method not in methods or "step_" not in path or not left[0]:
                return None
            left[0] -= 1
            return kind

    return fault, left


@pytest.mark.slow
@pytest.mark.parametrize("who", [0, 1])
def test_a_process_that_cannot_upload_raises_in_all_and_harms_no_step(proxy, tmp_path, who):
    refused = f"/step_00000002-\\w+/arrays/process_{who}/"
    proxy.fault = lambda method, path: (
        "busy" if method == "PUT" and re.search(refused, path) else None
    )
    more = {"AWS_MAX_ATTEMPTS": "1"}
    ended = [finish(one, 200) for one in start(proxy, tmp_path / "a", 1, 2, 3, more=more)]
    for one in ended:
        first, second, third = lines_of(one)
        assert (first["error"], third["error"]) == (None, None)
        assert second["error"][0] == "CheckpointError"
        assert "saving step 2 failed: s3://" in second["error"][1]
        assert (third["steps"], second["left"], third["left"]) == ([1, 3], [], [])
    assert [len(lines_of(one)[1]["warnings"]) for one in ended] == [1, 0]  # one process speaks
    assert not [name for name in names_of(proxy) if "step_00000002" in name]
    check_restores(proxy, tmp_path / "b", 3)


@pytest.mark.slow
def test_a_store_that_does_not_answer_a_restore_is_no_damage(proxy, tmp_path):
    told(start(proxy, tmp_path / "a", 1, 2))
    proxy.fault = lambda method, path: (
        "busy" if method == "GET" and "/arrays/process_1/" in path else None
    )
    more = {"AWS_MAX_ATTEMPTS": "1"}
    ended = [finish(one, 200) for one in start(proxy, tmp_path / "b", restores=True, more=more)]
    for one in ended:
        assert one.exit_code == 7
        assert re.search("StorageError|StoreError", one.stdout)
        assert "cannot read step_00000002" in one.stdout
    assert [list((tmp_path / "b" / index).iterdir()) for index in "01"] == [[], []]


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["flipped", "lost"])
def test_damage_of_one_part_makes_all_go_back(proxy, tmp_path, damage):
    told(start(proxy, tmp_path / "a", 1, 2))
    parts = [f"/{proxy.bucket}/{one}" for one in names_of(proxy) if "2-" in one]
    of_second = [one for one in parts if "/arrays/process_1/d/" in one]
    largest = max(of_second, key=lambda one: len(ask(proxy.target, "GET", one)[2]))
    content = bytearray(ask(proxy.target, "GET", largest)[2])
    content[len(content) // 2] ^= 1
    if damage == "lost":
        ask(proxy.target, "DELETE", largest)
    else:
        ask(proxy.target, "PUT", largest, bytes(content))
    found = [lines_of(finish(one)) for one in start(proxy, tmp_path / "b", 3, restores=True)]
    for restored, saved in found:
        assert (restored["step"], restored["is right"]) == (1, True)
        assert saved["steps"] == [1, 3]  # the damaged one was quarantined
    (text,) = found[0][0]["warnings"]
    assert f"{largest.partition('/arrays/')[2]} " in text
    assert f"It is left as it is in s3://{proxy.bucket}/run/step_00000002 until" in text
    assert found[1][0]["warnings"] == []
    check_restores(proxy, tmp_path / "c", 3)


@pytest.mark.slow
def test_a_run_changes_from_one_process_to_several_and_back_on_one_disk(proxy, tmp_path):
    told(start(proxy, tmp_path, 1, 2, count=1, devices=4))
    found = told(start(proxy, tmp_path, 3, restores=True))
    assert [(one["steps"], one["warnings"]) for one in found] == [([1, 2, 3], [])] * 2
    check_one_process_restores(proxy, tmp_path / "0", [1, 2, 3])


# -- Kills -----------------------------------------------------------------------------------------
#
# Process `who` is killed when step 2 is saved: before a file operation, or at a request that the
# server gets or does not. What is restorable then is step 1, or 2 once its index is written.

_STEP = r"/step_00000002-\w+"
LOCAL = [
    (0, "os.mkdir", "arrays/process_0"),
    (1, "os.mkdir", "arrays/process_1"),
    (0, "os.rename", "manifest.json"),
]
REQUESTS = [
    (0, f"PUT .*{_STEP}/arrays/process_0/.*", False, 1),
    (1, f"PUT .*{_STEP}/arrays/process_1/.*", False, 1),
    (0, f"PUT .*{_STEP}/arrays/process_1/.*", False, 1),  # while the other one uploads
    (1, f"PUT .*{_STEP}/arrays/process_1/.*", True, 1),
    (1, f"GET .*{_STEP}/arrays/process_1/.*", True, 1),  # when it reads back
    (0, f"PUT .*{_STEP}/manifest.json", False, 1),
    (0, f"PUT .*{_STEP}/manifest.json", True, 1),
    (1, f"PUT .*{_STEP}/manifest.json", True, 2),  # the one that has done its part
    (0, f"PUT .*{_STEP}.json", False, 1),
    (0, f"PUT .*{_STEP}.json", True, 2),
    (0, "POST .*delete.*", False, 2),
]


def check_resumes(proxy, tmp_path, newest):
    """Restores on empty disks, saves another step, and looks for what the killed one left."""
    check_one_process_restores(proxy, tmp_path / "one", sorted({1, newest}))
    ended = [finish(one) for one in start(proxy, tmp_path / "b", newest + 1, restores=True)]
    for restored, saved in map(lines_of, ended):
        assert (restored["step"], restored["is right"], restored["warnings"]) == (newest, True, [])
        assert (saved["error"], saved["warnings"]) == (None, [])
    check_one_process_restores(proxy, tmp_path / "two", sorted({1, newest, newest + 1}))
    prefixes = {name.split("/")[1] for name in names_of(proxy) if "step_" in name}
    whole = {name for name in prefixes if not name.endswith(".json")}
    assert prefixes == whole | {f"{name}.json" for name in whole}


def killed(processes, who):
    """Waits for the killed process, then ends the others as a launcher does."""
    assert finish(processes[who], 200).exit_code == -signal.SIGKILL
    time.sleep(0.5)
    for one in processes:
        with contextlib.suppress(ProcessLookupError):
            one.kill()
        finish(one)


@pytest.mark.slow
@pytest.mark.parametrize(("who", "event", "path_end"), LOCAL)
def test_a_process_killed_while_it_writes_harms_no_step(proxy, tmp_path, who, event, path_end):
    task = {"dies at": 2, "who": who, "before": (event, path_end)}
    killed(start(proxy, tmp_path / "a", 1, 2, **task), who)
    check_resumes(proxy, tmp_path, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("who", "request_of", "is_served", "newest"), REQUESTS)
def test_a_process_killed_at_a_request_harms_no_step(
    proxy, tmp_path, who, request_of, is_served, newest
):
    processes = kill_at(proxy, tmp_path, who, request_of, is_served)
    killed(processes, who)
    proxy.fault = lambda method, path: None
    check_resumes(proxy, tmp_path, newest)


def kill_at(proxy, tmp_path, who, request_of, is_served):
    started = threading.Event()

    def kill(method, path):
        if not re.fullmatch(request_of, f"{method} {path}"):
            return None
        started.wait()
        if is_served:
            return processes[who].kill
        processes[who].kill()
        return "cut upload" if method != "GET" else "cut answer"

    proxy.fault = kill
    processes = start(proxy, tmp_path / "a", 1, 2, keep=1 if "delete" in request_of else 3)
    started.set()
    return processes


@pytest.mark.slow
def test_the_process_that_is_left_over_raises(proxy, tmp_path):
    request = f"PUT .*{_STEP}/arrays/process_1/.*"
    first, second = (finish(one) for one in kill_at(proxy, tmp_path, 1, request, is_served=False))
    assert second.exit_code == -signal.SIGKILL
    assert first.exit_code not in (0, -signal.SIGKILL)
    proxy.fault = lambda method, path: None
    check_resumes(proxy, tmp_path, 1)


@pytest.mark.slow
def test_a_process_killed_while_it_restores_changes_nothing(proxy, tmp_path):
    told(start(proxy, tmp_path / "a", 1, 2))
    before = names_of(proxy)
    proxy.fault = lambda method, path: (
        processes[1].kill if method == "GET" and "/arrays/process_1/d/" in path else None
    )
    processes = start(proxy, tmp_path / "b", restores=True)
    killed(processes, 1)
    proxy.fault = lambda method, path: None
    assert names_of(proxy) == before
    check_restores(proxy, tmp_path / "b", 2)
    assert [list((tmp_path / "b" / index).iterdir()) for index in "01"] == [[], []]
