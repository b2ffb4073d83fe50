"""Compiled programs, parsed from the HLO text that XLA prints."""
