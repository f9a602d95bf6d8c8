"""What can be said about the kernels without a GPU: launches recorded, costs counted, machine code read."""
