"""`python -m jaxmbd` is the command `jaxmbd`."""

import sys

from jaxmbd.cli import main

if __name__ == "__main__":
    sys.exit(main())
