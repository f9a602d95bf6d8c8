"""What `p3 gpu-check` does: everything that can only be known on a GPU, as small steps that can be resumed."""
