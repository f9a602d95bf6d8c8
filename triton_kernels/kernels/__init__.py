"""The `@triton.jit` functions, and nothing that launches them."""
