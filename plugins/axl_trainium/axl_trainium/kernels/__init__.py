"""NKI kernels: what runs on a NeuronCore. The linter holds these files to a subset of Python."""
