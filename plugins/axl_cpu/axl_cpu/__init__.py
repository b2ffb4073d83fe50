"""Kernels for host processors, compiled by LLVM for the one that they run on."""
