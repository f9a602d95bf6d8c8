"""Triton kernels, one file an op. None yet: `p3kernels.available_backends()` says so."""
