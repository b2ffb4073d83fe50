"""What this machine can confine programs with: bubblewrap, namespaces, or Landlock.

All of them refuse the same calls by a seccomp filter, which leaves what a computation needs: no
process, thread, signal or connection. They differ in how files are kept away.
"""

import ctypes
import functools
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

MECHANISMS = ("bubblewrap", "namespaces", "landlock")
"""The strongest first; the first one that works is used."""

INSTALL_HINT = "apt install bubblewrap libseccomp2"

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/nix/store")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")

_CALLS = """
read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek close close_range dup
dup2 dup3 pipe pipe2 sendfile copy_file_range poll ppoll select pselect6
epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd2
open openat stat lstat fstat newfstatat statx statfs fstatfs access faccessat faccessat2
readlink readlinkat getcwd chdir fchdir getdents getdents64 umask fadvise64
mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 ftruncate fsync fdatasync flock
mmap munmap mprotect mremap madvise brk mincore msync
rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigsuspend sigaltstack pause
restart_syscall setitimer getitimer alarm
getpid getppid gettid getuid geteuid getgid getegid getpgid getpgrp getsid getgroups getresuid
getresgid getrlimit setrlimit getrusage times sysinfo uname getcpu sched_getaffinity sched_yield
clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time getrandom
futex set_robust_list get_robust_list rseq arch_prctl wait4 waitid recvfrom exit exit_group
"""
"""Calls that a computation makes. Those that change what is outside without opening it, as chmod
or truncate, are missing because Landlock does not ask for them; those that start, watch or signal
processes, because nothing else then bounds them."""

_IS, _MASKED = 4, 7
_ANY_32 = 0xFFFFFFFF
_ARGUMENTS: tuple[tuple[str, int, int, int], ...] = (
    # (call, which argument, the bits that count, their value); of the rest the kernel sees nothing.
    *(("fcntl", 1, _ANY_32, number) for number in (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032)),
    *(("ioctl", 1, _ANY_32, number) for number in (0x5401, 0x5421, 0x541B, 0x5450, 0x5451)),
    ("prlimit64", 0, _ANY_32, 0),  # its own limits
    ("socketpair", 0, _ANY_32, 1),  # two ends within the process, as asyncio wants them
    ("sendto", 4, (1 << 64) - 1, 0),  # to such an end, not to an address
)
"""Calls that are let through with these arguments: fcntl and ioctl also send signals to other
processes and write into terminals."""


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operation", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    )


@functools.cache
def call_filter() -> bytes:
    """Return the filter of calls as a BPF program, made by libseccomp for this processor.

    Raises:
        OSError: libseccomp is missing, or refuses.
    """
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    refuse, allow = 0x00050000 | 1, 0x7FFF0000  # with EPERM, as PermissionError shows it
    context = ctypes.c_void_p(library.seccomp_init(refuse))
    rules: list[tuple[str, tuple[_Comparison, ...]]] = [(name, ()) for name in _CALLS.split()]
    rules += [(call, (_Comparison(at, _MASKED, bits, is_),)) for call, at, bits, is_ in _ARGUMENTS]
    try:
        for name, compared in rules:
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number < 0:  # processors other than x86 have only the newer of several calls
                continue
            array = (_Comparison * len(compared))(*compared)
            result = library.seccomp_rule_add_array(context, allow, number, len(compared), array)
            if result:
                raise OSError(-result, f"libseccomp refuses the rule of {name}")
        with tempfile.TemporaryFile() as file:
            result = library.seccomp_export_bpf(context, file.fileno())
            if result:
                raise OSError(-result, "libseccomp does not write the filter")
            file.seek(0)
            return file.read()
    finally:
        library.seccomp_release(context)


@attrs.frozen
class Interpreter:
    """The Python that runs programs.

    Args:
        program: Its file, links followed.
        packages: Folders of installed packages.
        readable: What programs can read: the system's libraries, Python's and packages.
    """

    program: str
    packages: tuple[str, ...]
    readable: tuple[str, ...]


@functools.cache
def interpreter() -> Interpreter:
    """Return the Python of this process; of folders that contain others only the outer is named."""
    program = os.path.realpath(sys.executable)
    home = Path(program).parents[1]
    found = [one for one in sys.path if Path(one).name in ("site-packages", "dist-packages")]
    packages = tuple(dict.fromkeys(os.path.realpath(one) for one in found if os.path.isdir(one)))
    standard = os.path.realpath(sysconfig.get_path("stdlib"))
    own = [str(home / "bin"), str(home / "lib"), standard, *packages, str(Path(__file__).parent)]
    names = (*_SYSTEM, *_DEVICES, *own)
    present = dict.fromkeys(one for one in names if os.path.exists(one))
    readable = [one for one in present if not any(one.startswith(f"{other}/") for other in present)]
    return Interpreter(program, packages, tuple(readable))


def command(mechanism: str, script: str, *, files_bytes: int, info: int) -> Sequence[str]:
    """Return the command that starts the interpreter with a script under a mechanism.

    Args:
        mechanism: One of `MECHANISMS`, or another, which the script sees to.
        script: What runs.
        files_bytes: Of all files in the folder that can be written.
        info: A descriptor to which bubblewrap writes the number of its process.
    """
    # -I: neither variables nor the current folder change what is imported; -S: no hooks of packages
    # run, which would cost most of the time of the start; -u: what was printed outlives a kill.
    python = [interpreter().program, "-I", "-S", "-B", "-u", script]
    if mechanism != "bubblewrap":
        return python
    program = shutil.which("bwrap")
    if program is None:
        raise FileNotFoundError("bwrap is not installed")
    return [program, *_bubblewrap_options(files_bytes, info), *python]


def _bubblewrap_options(files_bytes: int, info: int) -> Iterator[str]:
    yield from ("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net")
    yield from ("--unshare-uts", "--unshare-cgroup-try", "--uid", "65534", "--gid", "65534")
    yield from ("--die-with-parent", "--cap-drop", "ALL", "--info-fd", str(info))
    for path in interpreter().readable:
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        else:
            yield from ("--dev-bind" if path in _DEVICES else "--ro-bind", path, path)
    yield from ("--size", str(files_bytes), "--tmpfs", "/program", "--remount-ro", "/", "--")
