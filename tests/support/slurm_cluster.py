"""A real Slurm of two nodes on this machine, for as long as a context lasts."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from marked_processes import kill_all_with

from axcore.launch.local import free_port

NODES = ("n1", "n2")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
_WAIT_S = 120

_CONFIG = """\
ClusterName=axcore
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=20
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmdTimeout=300
MessageTimeout=100
BatchStartTimeout=120
KillWait=5
CompleteWait=0
SchedulerParameters=sched_interval=1,batch_sched_delay=0
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


def missing_reason():
    """Returns why there is no Slurm here; empty where it can be started."""
    absent = [name for name in _PROGRAMS if shutil.which(name, path=_path()) is None]
    if absent:
        return f"no {', '.join(absent)}: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "slurmd starts jobs as root only"


class SlurmCluster:
    """Controller, two nodes and munge, all in one folder, on free ports; `with` ends them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._daemons = []
        self.environment = {"PATH": _path(), "SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self):
        with contextlib.ExitStack() as failed:
            failed.callback(self.close)
            self._configure()
            key = self.folder / "munge.key"
            key.write_bytes(os.urandom(128))
            key.chmod(0o400)
            places = {"key-file": key.name, "socket": "munge.socket", "pid-file": "munged.pid"}
            places |= {"log-file": "munged.log", "seed-file": "munged.seed"}
            options = [f"--{name}={self.folder / file}" for name, file in places.items()]
            self._start("munged", "--foreground", "--force", *options)
            self._wait_for(lambda: (self.folder / "munge.socket").exists(), "munged's socket")
            self._start("slurmctld", "-D", "-i")
            for node in NODES:
                self._start("slurmd", "-D", "-N", node)
            self._wait_for(self._is_idle, "both nodes")
            failed.pop_all()
        return self

    def __exit__(self, *_):
        self.close()

    def call(self, *command, text="", **variables):
        """Returns what a program of Slurm prints."""
        ran = subprocess.run(
            command, input=text, env={**os.environ, **self.environment, **variables},
            capture_output=True, text=True, check=False, timeout=_WAIT_S, cwd=self.folder,
        )  # fmt: skip
        assert ran.returncode == 0, f"{command}: {ran.stderr}"
        return ran.stdout

    def job(self, number):
        """Returns what Slurm knows of a job, by the names that `scontrol show job` uses."""
        shown = self.call("scontrol", "--oneliner", "show", "job", str(number))
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)

    def close(self):
        """Ends every process that has this cluster's variables: jobs and daemons."""
        with contextlib.suppress(Exception):
            self.call("scancel", "--user=root", "--full")
        kill_all_with("SLURM_CONF", self.environment["SLURM_CONF"])
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait()

    def _configure(self):
        (self.folder / "state").mkdir()
        controller, *ports = _free_ports(1 + len(NODES))
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} "
            f"CPUs={os.cpu_count()}"
            for node, port in zip(NODES, ports, strict=True)
        )
        text = _CONFIG.format(
            host=socket.gethostname(), controller=controller, folder=self.folder, nodes=nodes,
            names=",".join(NODES),
        )  # fmt: skip
        (self.folder / "slurm.conf").write_text(text, encoding="utf-8")

    def _start(self, program, *options):
        with (self.folder / f"{program}.out").open("a") as output:
            self._daemons.append(
                subprocess.Popen(
                    [shutil.which(program, path=_path()), *options],
                    env={**os.environ, **self.environment},
                    stdout=output,
                    stderr=output,
                )
            )

    def _is_idle(self):
        with contextlib.suppress(AssertionError):
            states = self.call("sinfo", "--noheader", "--Node", "--format=%T").split()
            return states == ["idle"] * len(NODES)
        return False

    def _wait_for(self, is_there, what):
        end = time.monotonic() + _WAIT_S
        while not is_there():
            dead = [daemon.args[0] for daemon in self._daemons if daemon.poll() is not None]
            logs = {file.name: file.read_text()[-2000:] for file in self.folder.glob("*.out")}
            assert not dead, f"{dead} ended: {logs}"
            assert time.monotonic() < end, f"{what} did not come: {logs}"
            time.sleep(0.1)


def _path():
    return os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/usr/bin"])


def _free_ports(count):
    ports = set()
    while len(ports) < count:
        ports.add(free_port())
    return ports
