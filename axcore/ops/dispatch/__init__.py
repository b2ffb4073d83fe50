"""Choosing the kernel of a call: registry, plan, policy, block sizes, tolerances."""
