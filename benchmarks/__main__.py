"""Measurements that are not shipped: run `python -m benchmarks --help` in the checkout."""

from __future__ import annotations

import sys

from distrlcc.cli.main import main

COMMANDS = (
    *("sim", "env", "train", "parity", "scaling", "engines", "actors", "tune", "net", "box"),
    *("chaos", "cluster"),
)

if __name__ == "__main__":
    sys.exit(main(prog="python -m benchmarks", commands=COMMANDS, package="benchmarks.bench_"))
