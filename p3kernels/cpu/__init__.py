"""The C++ kernels for CPUs."""
