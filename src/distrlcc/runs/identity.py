"""Versions of what ran, and what every member of a group must have in common."""

import hashlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import distrlcc
from distrlcc import __version__
from distrlcc.config import to_toml, toml_differences
from distrlcc.errors import ConfigError, NoGroupError, reading
from distrlcc.plugins import portable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_CONFIG = "config"
PACKAGES = ("torch", "numpy", "numba", "gymnasium")  # their versions are kept beside the results
NOT_INSTALLED = "not installed"
_REMEDY = "; does a distrlcc of this version answer there?"
_MOST_ROWS, _WIDEST = 20, 100  # of a table of differences: what the others say may be long


def package_versions() -> dict[str, str]:
    """Return the versions of distrlcc, Python and the packages that shape results."""
    found = {"distrlcc": __version__, "python": platform.python_version()}
    return found | {package: package_version(package) for package in PACKAGES}


def package_version(package: str) -> str:
    """Return a package's version, or `NOT_INSTALLED`."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return NOT_INSTALLED


def versions() -> dict[str, Any]:
    """Return versions, platform, command and the wall-clock date, for people."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    here = {"platform": platform.platform(), "cpus": os.cpu_count()}
    return {**package_versions(), **here, "command": sys.argv, "date": date}


def identity(config: "DataclassInstance | None", **others: str | int) -> dict[str, str]:
    """Return the versions, the configuration if any, and whatever else members must agree on."""
    versions = package_versions()
    return {
        "distrlcc": versions["distrlcc"],
        "code": _code(),
        "torch": versions["torch"],
        "python": ".".join(platform.python_version_tuple()[:2]),
        **{name: str(value) for name, value in others.items()},
        **({_CONFIG: portable(to_toml(config))} if config is not None else {}),
    }


def _code() -> str:
    """Return a hash of this package's sources: two checkouts may bear one version."""
    package = Path(distrlcc.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def check_identity(master: Mapping[str, str], own: Mapping[str, str]) -> None:
    """Compare with the master's; raises GroupError with a table, or ConfigError if malformed."""
    with reading(ConfigError, "the master's identity cannot be read", _REMEDY):
        table = differences(msgspec.convert(master, dict[str, str]), own)
    if table:
        raise NoGroupError(
            "this process does not match the master; install the same versions and give the same "
            f"recipe and flags:\n{table}"
        )


def differences(master: Mapping[str, str], own: Mapping[str, str]) -> str:
    """Return a table of what differs between the master and this process; empty if nothing does."""
    rows = [
        (name, master.get(name, "(absent)"), own.get(name, "(absent)"))
        for name in {**own, **master}
        if name != _CONFIG and master.get(name) != own.get(name)
    ]
    for line in toml_differences(master.get(_CONFIG, ""), own.get(_CONFIG, "")):
        key, _, values = line.partition(": ")
        rows.append((key, *values.split(" != ", 1)))  # type: ignore[arg-type]
    if not rows:
        return ""
    more = [("", f"and {len(rows) - _MOST_ROWS} more", "")] if len(rows) > _MOST_ROWS else []
    rows = [("", "master", "here"), *rows[:_MOST_ROWS], *more]
    rows = [tuple(ascii(cell)[1:-1][:_WIDEST] for cell in row) for row in rows]  # type: ignore[misc]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join("  ".join(["", *map(str.ljust, row, widths)]).rstrip() for row in rows)
