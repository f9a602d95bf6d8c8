"""One file an op: argument checks, the torch.library operator of each backend, and the choice between them."""
