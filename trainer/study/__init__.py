"""`p3 study`: methods compared over several seeds, each run a `p3 train`, and what an update of each costs."""
