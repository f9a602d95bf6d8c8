"""`python -m trainer`: the `p3` command, for a launcher that starts modules, such as torchrun."""

import sys

from trainer.cli import main

if __name__ == "__main__":
    sys.exit(main())
