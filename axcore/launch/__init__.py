"""Starting runs on existing engines, and finding out which process of a run this is."""

from axcore.launch.job import Job
from axcore.launch.launcher import Launcher, find_launcher
from axcore.launch.process_info import ProcessInfo, find_process_info, integer
from axcore.launch.submit import submit

__all__ = [
    "Job",
    "Launcher",
    "ProcessInfo",
    "find_launcher",
    "find_process_info",
    "integer",
    "submit",
]
