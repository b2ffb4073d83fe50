"""Ways out of a sandbox, each tried under every mechanism that this machine has."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from counts import count

from axcore.sandbox import MECHANISMS, ProgramLimits, run_program, why_not

LIMITS = ProgramLimits(seconds=20, memory_mib=256, file_mib=1, files_mib=2, max_files=50)
SHORT = ProgramLimits(seconds=0.4, memory_mib=256, file_mib=1, files_mib=2, max_files=50)

FILES = {
    "read a file": "open(kept).read()",
    "read by descriptor": "os.read(os.open(kept, os.O_RDONLY), 9)",
    "read the users": "open('/etc/passwd').read()",
    "list a folder": "os.listdir(folder)",
    "list the home of all": "os.listdir(os.path.dirname(folder))",
    "read the caller's variables": "open(f'/proc/{parent}/environ').read()",
    "read its own memory": "open('/proc/self/mem', 'rb')",
    "write a new file": "open(folder + '/new', 'w')",
    "append to a file": "open(kept, 'a')",
    "empty a file as it is opened": "os.open(kept, os.O_RDONLY | os.O_TRUNC)",
    "remove": "os.remove(kept)",
    "remove by a folder's descriptor": "os.unlink('kept', dir_fd=os.open(folder, os.O_PATH))",
    "remove by a relative path": "os.remove('../' * 40 + kept)",
    "remove by the C library": "libc('unlink', kept.encode())",
    "remove after chdir": "(os.chdir(folder), os.remove('kept'))",
    "rename": "os.rename(kept, folder + '/other')",
    "replace": "os.replace(made('mine'), kept)",
    "move away": "shutil.move(kept, 'mine')",
    "move over": "shutil.move(made('mine'), kept)",
    "copy over": "shutil.copyfile(made('mine'), kept)",
    "remove a tree": "shutil.rmtree(folder)",
    "truncate": "os.truncate(kept, 0)",
    "hard link to read": "os.link(kept, 'linked')",
    "hard link outside": "os.link(made('mine'), folder + '/linked')",
    "symbolic link outside": "os.symlink('x', folder + '/link')",
    "read through a symbolic link": "(os.symlink(kept, 'link'), open('link'))",
    "make a pipe": "os.mkfifo(folder + '/fifo')",
    "make a folder": "os.mkdir(folder + '/sub')",
    "remove a folder": "os.rmdir(folder + '/empty')",
    "change the mode": "os.chmod(kept, 0o777)",
    "change the owner": "os.chown(kept, os.getuid(), os.getgid())",
    "change the time": "os.utime(kept, (0, 0))",
    "set an attribute": "os.setxattr(kept, 'user.a', b'1')",
    "make a database": "__import__('sqlite3').connect(folder + '/db').execute('create table t(a)')",
    "make a file in memory": "os.memfd_create('a')",
}
SYSTEM = {
    "write to Python's library": "open(os.__file__, 'a')",
    "write to its own sandbox": "open(confine, 'a')",
    "write to the system": "open('/usr/lib/axcore-escaped', 'w')",
    "write to /tmp": "open('/tmp/axcore-escaped', 'w')",
    "write to shared memory": "open('/dev/shm/axcore-escaped', 'w')",
    "make a device": "os.mknod('disk', 0o60600, os.makedev(254, 0))",
    "change the mode by descriptor": "os.fchmod(os.open(sys.executable, os.O_RDONLY), 0o777)",
    "read a disk": "open(os.path.join('/dev', 'vda'), 'rb')",
}
KERNEL = {
    "mount": "libc('mount', b'none', folder.encode(), b'tmpfs', 0, None)",
    "chroot": "os.chroot('/')",
    "new namespaces": "libc('unshare', 0x10000000 | 0x00020000)",
    "join namespaces": "libc('setns', 0, 0)",
    "pivot_root": "libc('pivot_root', b'.', b'.')",
    "open by handle": "libc('open_by_handle_at', -100, bytes(64), 0)",
    "become root": "libc('setresuid', 0, 0, 0)",
    "take capabilities": "libc('capset', struct.pack('Ii', 0x20080522, 0), b'\\xff' * 24)",
    "raise a limit": "libc('setrlimit', 9, b'\\xff' * 16)",
    "raise a limit of another": "resource.prlimit(parent, resource.RLIMIT_CPU, (1, 1))",
    "trace a process": "libc('ptrace', 16, parent, 0, 0)",
    "read another's memory": "libc('process_vm_readv', parent, 0, 0, 0, 0, 0)",
    "asynchronous calls": "libc('syscall', 425, 1, bytes(200))",
    "keys": "libc('syscall', 250, 0, -3, 0)",
    "load a program into the kernel": "libc('syscall', 321, 0, bytes(200), 200)",
    "shared memory": "libc('shmget', 0, 4096, 0o1600)",
    "drop the filter": "libc('prctl', 22, 0, 0, 0, 0)",
    "outlive the caller": "libc('prctl', 1, 0, 0, 0, 0)",
}
PROCESSES = {
    "fork": "os.fork()",
    "shell": "os.system('true') and refused()",
    "subprocess": "subprocess.run(['/bin/true'])",
    "popen": "os.popen('true')",
    "spawn": "os.posix_spawn('/bin/true', ['true'], {})",
    "exec": "os.execv('/bin/true', ['true'])",
    "fork of the C library": "libc('fork')",
    "clone": "libc('syscall', 56, 17, 0, 0, 0, 0)",
    "clone3": "libc('syscall', 435, bytes(88), 88)",
    "a terminal": "__import__('pty').fork()",
    "multiprocessing": "__import__('multiprocessing').Process(target=print).start()",
    "a pool": "__import__('multiprocessing').Pool(1)",
    "a thread": "__import__('threading').Thread(target=print).start()",
    "leave the session": "os.setsid()",
    "leave the group": "os.setpgid(0, 0)",
}
SIGNALS = {
    "end the caller": "os.kill(parent, 15)",
    "end all": "os.kill(-1, 9)",
    "end the group": "os.killpg(0, 9)",
    "look for a process": "os.kill(1, 0)",
    "by the C library": "libc('kill', parent, 15)",
    "to a thread": "libc('tgkill', parent, parent, 15)",
    "with a value": "libc('sigqueue', parent, 15, 0)",
    "by descriptor": "os.pidfd_open(parent)",
    "by a file's owner": "fcntl.fcntl(1, fcntl.F_SETOWN, parent)",
    "priority of another": "os.setpriority(0, parent, 19)",
    "processors of another": "os.sched_setaffinity(parent, {0})",
}
NETWORK = {
    "connect": "socket.create_connection(('127.0.0.1', 9), 1)",
    "datagram": "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
    "listen": "socket.create_server(('127.0.0.1', 0))",
    "IPv6": "socket.socket(socket.AF_INET6)",
    "raw": "socket.socket(type=socket.SOCK_RAW)",
    "of the machine": "socket.socket(socket.AF_UNIX).connect('/run/systemd/private')",
    "abstract": "socket.socket(socket.AF_UNIX).bind('\\0axcore')",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "packets": "socket.socket(socket.AF_PACKET)",
    "of a virtual machine": "socket.socket(socket.AF_VSOCK)",
    "a name": "socket.getaddrinfo('example.com', 80)",
    "a page": "__import__('urllib.request').request.urlopen('http://127.0.0.1:9', timeout=1)",
    "by the C library": "libc('socket', 2, 1, 0)",
    "to an address from a pair": "socket.socketpair(type=2)[0].sendto(b'x', '/dev/log')",
    "pass a descriptor": "socket.send_fds(socket.socketpair()[0], [b'x'], [0])",
}
BATCHES = {
    "files": FILES,
    "files of the system": SYSTEM,
    "kernel": KERNEL,
    "processes": PROCESSES,
    "signals": SIGNALS,
    "network": NETWORK,
}

BEGIN = """
import ctypes, fcntl, os, resource, shutil, signal, socket, struct, subprocess, sys
folder, confine = {folder!r}, {confine!r}
kept = folder + "/kept"
parent = os.getppid() or 2  # 0 where it is in another namespace
LIBC = ctypes.CDLL(None, use_errno=True)
def libc(name, *arguments):
    if getattr(LIBC, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)
def refused():
    raise PermissionError
def made(name):
    open(name, "w").close()
    return name
def attempt(action):
    try:
        eval(action)
    # Threads that cannot start are RuntimeErrors.
    except (OSError, RuntimeError, shutil.Error) as error:
        return None
    except Exception as error:
        return "OperationalError" not in repr(error) and repr(error)
    return "done"
"""
CHECKS = """
for name, action in {actions!r}.items():
    found = attempt(action)
    assert not found, (name, found)
"""


@pytest.fixture(params=MECHANISMS)
def mechanism(request):
    reason = why_not(request.param)
    if reason is not None:
        pytest.skip(f"{request.param} does not work here: {reason}")
    return request.param


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "empty").mkdir()
    return tmp_path


def tree(folder):
    """Returns what a program could have changed: names, modes, times and contents."""
    found = {one: one.lstat() for one in (folder, *folder.rglob("*"))}
    texts = {one: one.read_text() for one, of in found.items() if stat.S_ISREG(of.st_mode)}
    return {one: (of.st_mode, of.st_uid, of.st_mtime_ns) for one, of in found.items()}, texts


def begun(folder):
    import axcore.sandbox.confine as confine

    return BEGIN.format(folder=str(folder), confine=confine.__file__)


def counted(mechanism, is_refused, number=1):
    count(f"sandbox escapes refused by {mechanism}", number if is_refused else 0, number)


@pytest.mark.parametrize("kind", BATCHES)
def test_every_way_out_is_refused(kind, mechanism, folder):
    before = tree(folder)
    verdict = run_program(
        begun(folder), CHECKS.format(actions=BATCHES[kind]), LIMITS, mechanism=mechanism
    )
    counted(mechanism, verdict.status == "passed", len(BATCHES[kind]))
    assert verdict.status == "passed", verdict
    assert verdict.output == ""
    assert tree(folder) == before
    assert not os.path.exists("/tmp/axcore-escaped")


def test_the_ways_to_files_are_open_where_nothing_confines_a_program(folder):
    """Otherwise they could be refused for another reason, as a wrong name."""
    restore = """
start = os.getcwd()
def restore():
    os.chdir(start)
    shutil.rmtree(folder, ignore_errors=True)
    for one in os.listdir():
        os.remove(one)
    os.makedirs(folder + "/empty")
    open(kept, "w").write("kept")
"""
    checks = f"for name, action in {FILES!r}.items():\n    restore()\n"
    checks += "    found = attempt(action)\n    assert found == 'done', (name, found)"
    verdict = run_program(begun(folder) + restore, checks, LIMITS, mechanism="none")
    assert verdict.status == "passed", verdict


ENDLESS = {
    "a loop": "while True: pass",
    "sleep": "import time; time.sleep(1000)",
    "signals ignored": "import signal\nfor one in (14, 15, 24):\n"
    "    signal.signal(one, signal.SIG_IGN)\nwhile True: pass",
    "every exception caught": "while True:\n    try:\n        while True: pass\n    except: pass",
    "within a call": "def f():\n    while True: pass",
    "within the C library": "import re; re.match('(a+)+$', 'a' * 40 + 'b')",
    "a number without end": "10 ** (10 ** 9)",
    "a stopped process": "import select; select.select([], [], [])",
    "an iterator without end": "import itertools\ndef f(): return itertools.count()",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_program_that_does_not_end_is_ended(name, mechanism):
    began = time.monotonic()
    verdict = run_program(ENDLESS[name], "list(f())", SHORT, mechanism=mechanism)
    counted(mechanism, verdict.status == "timeout")
    assert verdict.status == "timeout"
    assert time.monotonic() - began < 20


TOO_MUCH = {
    "memory at once": "bytearray(1 << 29)",
    "memory in pieces": "found = []\nwhile True: found.append(bytearray(1 << 20))",
    "memory that is mapped": "import mmap; mmap.mmap(-1, 1 << 29)",
    "a large file": "open('a', 'wb').write(bytes(2 << 20))",
    "a sparse file": "import os; os.ftruncate(os.open('a', os.O_CREAT | os.O_RDWR), 1 << 30)",
    "many files of some size": "import time\nfor i in range(9):\n"
    "    with open(str(i), 'wb') as file: file.write(bytes(1 << 19))\ntime.sleep(9)",
    "many empty files": "import time\nfor i in range(300):\n    open(str(i), 'w').close()\n"
    "time.sleep(9)",
    "folders in folders": "import os, time\nfor i in range(3000):\n"
    "    os.mkdir('a'); os.chdir('a')\ntime.sleep(9)",
    "folders of long names": "import os, time\nfor i in range(300):\n    os.mkdir('a' * 255, 0)\n"
    "    os.chdir('a' * 255)\ntime.sleep(9)",
    "much output": "print('x' * (3 << 20))",
    "many open files": "import os\nfor _ in range(100): os.dup(0)",
    "a long answer": "def f(): return 'x' * (40 << 20)",
    "a deep answer": "def f(): answer('[' * 30000)",
}
PIPES = """
import os
def is_open(one):
    try:
        return bool(os.fstat(one))
    except OSError:
        return False
ends = [one for one in range(3, 64) if is_open(one)]
def answer(text):
    os.write(ends[-1], text.encode() + b"\\n")
"""


@pytest.mark.parametrize("name", TOO_MUCH)
def test_a_program_that_takes_too_much_fails(name, mechanism):
    code = f"{PIPES}def f(): pass\n{TOO_MUCH[name]}"  # which would pass without limits
    verdict = run_program(code, "f()", LIMITS, mechanism=mechanism)
    # A busy machine may end it by its time before it has taken as much as it may.
    is_bounded = verdict.status in ("failed", "timeout")
    counted(mechanism, is_bounded)
    assert is_bounded, verdict


FORGED = {
    "exit": "import sys; sys.exit(0)",
    "exit at once": "import os; os._exit(0)",
    "exit in a call": "def f(x):\n    import os; os._exit(0)",
    "SystemExit in a call": "def f(x): raise SystemExit(0)",
    "exit at the end": "import atexit, os; atexit.register(os._exit, 0)",
    "an end by a signal": "import ctypes; ctypes.string_at(0)",
    "another architecture's call": "import ctypes; ctypes.CDLL(None).syscall(0x40000027)",
    "equal to everything": "class A:\n    def __eq__(self, other): return True\n"
    "def f(x): return A()",
    "a number equal to everything": "class A(int):\n    def __eq__(self, other): return True\n"
    "    __hash__ = int.__hash__\ndef f(x): return A()",
    "text equal to everything": "class A(str):\n    def __eq__(self, other): return True\n"
    "    __hash__ = str.__hash__\ndef f(x): return A()",
    "a list equal to everything": "class A(list):\n    def __eq__(self, other): return True\n"
    "def f(x): return A()",
    "not unequal": "class A:\n    def __ne__(self, other): return False\ndef f(x): return A()",
    "a class of another": "class A:\n    __class__ = int\ndef f(x): return A()",
    "built-in functions replaced": "import builtins\nbuiltins.len = builtins.abs = lambda x: 4\n"
    "def f(x): return []",
    "names of the checks": "len = abs = check = expected = lambda *x: 4\ndef f(x): return []",
    "exceptions replaced": "import builtins\nbuiltins.AssertionError = ValueError\n"
    "def f(x): raise AssertionError",
    "an exception": "def f(x): raise StopIteration",
    "frames": "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
    "        for one in (frame.f_locals, frame.f_globals):\n"
    "            if 'expected' in one: return one['expected']\n        frame = frame.f_back",
    "garbage": "import gc\ndef f(x):\n    for one in gc.get_objects():\n"
    "        if isinstance(one, str) and 'expected =' in one: return 4",
    "a verdict in every file": "for one in [1, 2, *ends]:\n"
    '    try: os.write(one, b\'["passed", ""]\\n\')\n    except OSError: pass',
    "a verdict printed": 'print(\'["passed", ""]\')',
    "an answer that is none": "def f(x): answer('nonsense')",
    "an answer of another kind": 'def f(x): answer(\'["passed", ""]\')',
    "an answer of no object": 'def f(x): answer(\'["value", {"object": "x"}, []]\')',
    "an exception that exits": 'def f(x): answer(\'["raised", ["SystemExit"], "", ""]\')',
    "modules replaced": "import sys, types\nsys.modules['json'].dumps = lambda x: '[\"passed\"]'",
    "the server replaced": "import exchange\nexchange._answer = lambda *x: ['passed', '']",
    "nothing at all": "",
    "no Python": "def f(",
}
FORGERY_CHECKS = """
expected = 4
found = f(2)
assert found == expected and len([1]) == 1 and abs(-1) == 1
assert not found != expected
"""


@pytest.mark.parametrize("name", FORGED)
def test_no_program_passes_by_anything_but_its_answers(name, mechanism):
    code = f"{PIPES}{FORGED[name]}"
    verdict = run_program(code, FORGERY_CHECKS, LIMITS, mechanism=mechanism)
    counted(mechanism, verdict.status == "failed")
    assert verdict.status == "failed", verdict


def test_a_program_passes_the_same_checks_by_its_answers(mechanism):
    verdict = run_program("def f(x): return 2 * x", FORGERY_CHECKS, LIMITS, mechanism=mechanism)
    assert verdict.status == "passed", verdict


def test_a_program_has_no_variables_no_input_and_two_descriptors(mechanism, monkeypatch):
    monkeypatch.setenv("AXCORE_SECRET", "token")
    program = f"""{PIPES}
import os, sys
def f():
    opened = [one for one in range(3, 1000) if is_open(one)]
    return sorted(os.environ), sys.stdin.read(), len(opened)
"""
    checks = "names, text, num = f()\nassert 'AXCORE_SECRET' not in names, names\n"
    checks += "assert (text, num) == ('', 2)"
    assert run_program(program, checks, LIMITS, mechanism=mechanism).reason == ""


def test_checks_are_confined_as_well(mechanism, folder):
    checks = f"import os\ntry:\n    os.remove({str(folder / 'kept')!r})\nexcept OSError: pass"
    assert run_program("", checks, LIMITS, mechanism=mechanism).status == "passed"
    assert (folder / "kept").exists()


def test_no_process_is_left_running(mechanism, monkeypatch):
    started, start = [], subprocess.Popen

    def spy(*arguments, **options):
        started.append(start(*arguments, **options))
        return started[-1]

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", spy)
        assert (
            run_program("while True: pass", "pass", SHORT, mechanism=mechanism).status != "passed"
        )
    assert len(started) == 2
    until = time.monotonic() + 10
    while any(map(is_running, started)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(map(is_running, started))


def is_running(process):
    """Returns whether a process of the group is there that is not only waited for."""
    found = subprocess.run(["ps", "-A", "-o", "pgid=,stat="], capture_output=True, text=True)
    states = [line.split() for line in found.stdout.splitlines()]
    return any(int(group) == process.pid and state[0] != "Z" for group, state in states)


ENDLESS_RUN = """
import sys
from axcore.sandbox import ProgramLimits, run_program
run_program("while True: pass", "pass", ProgramLimits(seconds=300), mechanism=sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.every_case
def test_a_program_ends_with_its_caller_when_that_is_killed(mechanism):
    caller = subprocess.Popen([sys.executable, "-c", ENDLESS_RUN, mechanism])
    until = time.monotonic() + 280  # for a busy machine
    while not any(seconds >= 1 for seconds in descendants(caller.pid).values()):
        assert time.monotonic() < until
        time.sleep(0.05)
    left = descendants(caller.pid)
    caller.kill()
    caller.wait()
    until = time.monotonic() + 60
    while any(map(is_alive, left)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(map(is_alive, left))


def descendants(process):
    """Returns the processes below one, with the seconds of the processor that each has taken."""
    found = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,cputimes="], capture_output=True)
    rows = [tuple(map(int, line.split())) for line in found.stdout.splitlines()]
    below, seconds = {process}, {}
    for _ in rows:
        new = {pid: spent for pid, parent, spent in rows if parent in below and pid not in below}
        below |= new.keys()
        seconds |= new
    return seconds


def is_alive(pid):
    """Returns whether a process is there that is not only waited for."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(found.stdout.strip()) and not found.stdout.startswith("Z")


def test_nothing_is_left_behind(mechanism, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    deep = "import os\nfor i in range(3000):\n    os.mkdir('a', 0o700); os.chdir('a')"
    before = set(os.listdir(f"/proc/{os.getpid()}/fd"))
    run_program(deep, "pass", LIMITS, mechanism=mechanism)
    assert list(tmp_path.iterdir()) == []
    assert len(set(os.listdir(f"/proc/{os.getpid()}/fd"))) == len(before)


def test_as_many_ways_out_are_tried_as_the_page_says(capsys):
    kinds = {name: len(ways) for name, ways in BATCHES.items()}
    kinds |= {"time": len(ENDLESS), "memory and files": len(TOO_MUCH), "score": len(FORGED)}
    works = [one for one in MECHANISMS if why_not(one) is None]
    with capsys.disabled():
        shown = ", ".join(f"{number} of {name}" for name, number in kinds.items())
        print(f"\n{sum(kinds.values())} ways out of a sandbox, {shown}; under {', '.join(works)}")
    page = Path(__file__).parents[2] / "docs" / "evaluation.md"
    assert f"{sum(kinds.values())} ways out" in page.read_text(encoding="utf-8")


if sys.platform != "linux":
    pytest.skip("sandboxes are Linux's", allow_module_level=True)
