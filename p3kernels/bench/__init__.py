"""`p3 bench`: every op timed against eager torch, torch.compile and a bound, after their results were compared.

One file an op, with the op's name; `registry.py` finds them. Everything else is what they share.
"""
