"""Our own kernels for TPUs, in Pallas."""
