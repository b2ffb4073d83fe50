"""The rotary-position op."""
