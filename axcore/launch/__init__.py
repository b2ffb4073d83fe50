"""Starting runs on existing engines, and finding out which process of a run this is."""

from axcore.launch.job import Job, Launcher, find_launcher, submit
from axcore.launch.process_info import ProcessInfo, find_process_info, integer

__all__ = [
    "Job",
    "Launcher",
    "ProcessInfo",
    "find_launcher",
    "find_process_info",
    "integer",
    "submit",
]
