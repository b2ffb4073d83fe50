"""Starting runs on existing engines, and finding out where a process stands in one."""

from axcore.launch.job import Job
from axcore.launch.launcher import Launcher, find_launcher
from axcore.launch.place import Place, find_place, integer
from axcore.launch.submit import submit

__all__ = ["Job", "Launcher", "Place", "find_launcher", "find_place", "integer", "submit"]
