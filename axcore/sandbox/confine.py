"""Runs in the sandbox: confines its own process for good, then runs a program or its checks.

`axcore.sandbox.programs` starts it, nothing else. It imports the standard library alone, because it
starts twice for each program, in milliseconds.
"""

import base64
import ctypes
import importlib
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)

_NAMESPACES = 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000
"""CLONE_NEWUSER, NEWNS (mounts), NEWPID, NEWNET, NEWIPC and NEWUTS, of linux/sched.h."""

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_READ_ONLY, _NOSUID, _NODEV = 1, 2, 4
_AT_RECURSIVE = 0x8000
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_MODE_FILTER = 2
_CAPABILITY_VERSION = 0x20080522

# These calls have no wrapper in the C library; their numbers are the same on all processors.
_MOUNT_SETATTR, _LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 442, 444, 445, 446

_READ_FILE, _WRITE_FILE, _READ_FOLDER, _TRUNCATE = 1 << 2, 1 << 1, 1 << 3, 1 << 14
_REMOVE_FOLDER, _REMOVE_FILE, _MAKE_FOLDER, _MAKE_FILE = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_WRITE_FOLDER = _WRITE_FILE | _TRUNCATE | _REMOVE_FOLDER | _REMOVE_FILE | _MAKE_FOLDER | _MAKE_FILE

DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


def _call(name: str, *arguments: Any) -> int:
    """Call a function of the C library; a refusal is an error, so that nothing runs without."""
    # Zero the full registers: the kernel compares all 64 bits of some arguments with 0.
    wide = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = int(getattr(_LIBC, name)(*wide))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def _syscall(number: int, *arguments: Any) -> int:
    return _call("syscall", number, *arguments)


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    texts = [one.encode() for one in (source, target, kind)]
    _call("mount", *texts, flags, options.encode())


def _set_mount(path: str, attributes: int, *, is_recursive: bool = False) -> None:
    attribute = struct.pack("QQQQ", attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if is_recursive else 0
    _syscall(_MOUNT_SETATTR, -100, path.encode(), flags, attribute, len(attribute))


def enter_namespaces(said: Mapping[str, Any]) -> str:
    """Enter namespaces with a root of its own; returns the folder that can be written."""
    outside = (os.getuid(), os.getgid())
    _call("unshare", _NAMESPACES)
    # The kernel takes a map of groups only from a process that gave up setgroups.
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"65534 {outside[0]} 1"),
        ("gid_map", f"65534 {outside[1]} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    # Only children are in the new PID namespace: the child continues and is its process 1, with
    # whose end the kernel ends whatever else is in the namespace.
    child = os.fork()
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 255)
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return _private_root(said)


def _private_root(said: Mapping[str, Any]) -> str:
    # Private first: otherwise the mounts below would show up outside.
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    root = said["folder"]
    flags = _MS_NOSUID | _MS_NODEV
    _mount("tmpfs", root, "tmpfs", flags, "size=1m,nr_inodes=1000,mode=0755")
    for path in said["readable"]:
        if os.path.islink(path):
            os.symlink(os.readlink(path), root + path)
            continue
        _make_target(path, root + path)
        _mount(path, root + path, "", _MS_BIND | _MS_REC)
        attributes = _READ_ONLY | _NOSUID | (0 if path in DEVICES else _NODEV)
        _set_mount(root + path, attributes, is_recursive=True)
    os.mkdir(f"{root}/program")
    size = f"size={said['files_bytes']},nr_inodes={said['max_files'] + 1},mode=0700"
    _mount("tmpfs", f"{root}/program", "tmpfs", flags | _MS_NOEXEC, size)
    os.chdir(root)
    # Both the same folder: the old root is stacked upon the new one, and unmounted from there.
    _call("pivot_root", b".", b".")
    _call("umount2", b".", _MNT_DETACH)
    os.chdir("/")
    _set_mount("/", _READ_ONLY | _NOSUID | _NODEV)
    return "/program"


def _make_target(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target)
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "w", encoding="ascii"):
        pass


def restrict_files(readable: Iterable[str], folder: str) -> None:
    """Leave the process what is readable, and one folder to write to, by Landlock."""
    version = _syscall(_LANDLOCK_CREATE, None, 0, 1)
    if version < 3:  # before, files that can be read can be truncated
        raise OSError(f"Landlock has version {version}; version 3 is needed (Linux 6.2)")
    handled = [(1 << (16 if version >= 5 else 15)) - 1]
    handled += [3] if version >= 4 else []  # TCP: bind and connect
    handled += [3] if version >= 6 else []  # abstract sockets and signals outside of the sandbox
    attribute = struct.pack(f"{len(handled)}Q", *handled)
    rules = _syscall(_LANDLOCK_CREATE, attribute, len(attribute), 0)
    for path in readable:
        if path in DEVICES:
            _allow(rules, path, _READ_FILE | _WRITE_FILE)
        elif os.path.isdir(path):
            _allow(rules, path, _READ_FILE | _READ_FOLDER)
        else:
            _allow(rules, path, _READ_FILE)
    _allow(rules, folder, _READ_FILE | _READ_FOLDER | _WRITE_FOLDER)
    _syscall(_LANDLOCK_RESTRICT, rules, 0)
    os.close(rules)


def _allow(rules: int, path: str, access: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    _syscall(_LANDLOCK_ADD, rules, 1, struct.pack("=Qi", access, descriptor), 0)
    os.close(descriptor)


def _drop_capabilities() -> None:
    header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
    _call("capset", header, bytes(24))


def _filter_calls(program: bytes) -> None:
    class Filter(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))

    described = Filter(len(program) // 8, program)
    _call("prctl", _PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(described), 0, 0)


def _limit(limits: Mapping[str, int]) -> None:
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, name), (most, most))


def _close_all_but(kept: Sequence[int]) -> None:
    """Close what was inherited by mistake: a descriptor outlives every restriction."""
    first = 3
    for descriptor in sorted(kept):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def confine(said: Mapping[str, Any]) -> None:
    """Confine this process; the order is that in which each step is still possible."""
    _close_all_but(said["descriptors"])
    mechanism = said["mechanism"]
    if mechanism == "namespaces":
        folder = enter_namespaces(said)
    elif mechanism == "bubblewrap":
        folder = "/program"  # bubblewrap made the namespaces and the root before this began
    elif mechanism in ("landlock", "none"):
        folder = said["folder"]
    else:
        raise ValueError(f"there is no mechanism {mechanism!r}")
    os.chdir(folder)
    os.environ.update(said["environment"], HOME=folder, TMPDIR=folder)
    _limit(said["limits"])
    if mechanism == "none":
        return
    _drop_capabilities()  # after the mounts, which need them
    # Before Landlock and the filter: without it the kernel takes neither from an ordinary user, and
    # with it no program that is started can gain what was dropped.
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if mechanism == "landlock":
        restrict_files(said["readable"], folder)
    _filter_calls(base64.b64decode(said["filter"]))  # last: it refuses all calls above


def main() -> None:
    """Read what to do from its input, confines the process and does it."""
    if sys.platform == "linux":
        _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    said = json.loads(sys.stdin.buffer.read())
    # Nothing of the caller's terminal or input is left to the program.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    exchange = importlib.import_module("exchange")
    del sys.path[0]
    sys.path.extend(said["packages"])
    confine(said)
    exchange.ROLES[said["role"]](said["code"], *said["descriptors"])


if __name__ == "__main__":
    main()
