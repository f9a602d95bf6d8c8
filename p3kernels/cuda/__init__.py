"""The CUDA backend: whole networks in one launch, and native elementwise kernels around torch's matrix products."""
