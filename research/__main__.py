"""What we ask of policies and links: run `python -m research --help` in the checkout."""

from __future__ import annotations

import sys

from distrlcc.cli.main import main

COMMANDS = ("habits", "map", "curve", "late")

if __name__ == "__main__":
    sys.exit(main(prog="python -m research", commands=COMMANDS, package="research."))
