"""Profiles: what the time of a step goes to, measured where it runs."""

from axcore.profiles.capture import StepProfiler, parse_steps, recorded_profiles
from axcore.profiles.summary import Part, Profile, read_profile

__all__ = ["Part", "Profile", "StepProfiler", "parse_steps", "read_profile", "recorded_profiles"]
