"""From Python to functions that XLA calls on the host: emitted, compiled and registered here."""
