"""Whole networks as passes of torch's matrix products around elementwise kernels, given by a backend's `native`.

The CPU backend always runs so, the CUDA backend where there are gradients or too many rows for one launch.
"""
