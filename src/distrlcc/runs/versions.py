"""Versions of what ran, kept beside every result; nothing heavy is imported to find them."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from datetime import UTC, datetime
from typing import Any

from distrlcc import __version__

PACKAGES = ("torch", "numpy", "numba", "gymnasium")
"""Packages whose versions are kept beside the results."""


def package_versions() -> dict[str, str]:
    """Return the versions of distrlcc, Python and the packages that shape results."""
    found = {"distrlcc": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def versions() -> dict[str, Any]:
    """Return versions, platform, command and the wall-clock date, for people."""
    return {
        **package_versions(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "command": sys.argv,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
