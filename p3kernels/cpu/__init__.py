"""The CPU backend: native elementwise kernels around torch's matrix products."""
