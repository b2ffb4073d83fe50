"""Runs that survive: what is here loads no jax, so that a supervisor can stay small."""

from axcore.resilience.event_log import EVENTS_NAME, EventLog, LoggedEvents, read_events

__all__ = ["EVENTS_NAME", "EventLog", "LoggedEvents", "read_events"]
