"""`python -m apex_acer` is `apex-acer`."""

import sys

from apex_acer.cli import main

if __name__ == "__main__":
    sys.exit(main())
