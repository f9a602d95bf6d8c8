"""Triton kernels and their launchers: torch tensors in, launches out; knows nothing of p3kernels."""
