"""Run Gymnasium's checker and the project's own contract on every space and reward."""

from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take no arguments."""


def run(args: argparse.Namespace) -> int:
    """Check; 1 when anything is broken."""
    from distrlcc.env.contract import check_all

    failures = 0
    for name, problem in check_all():
        print(f"{name}: {problem or 'ok'}", file=sys.stderr if problem else sys.stdout)
        failures += problem is not None
    print(f"failures: {failures}")
    return 1 if failures else 0
