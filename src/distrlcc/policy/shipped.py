"""The policies that come with the package, by their recipes' names."""

from __future__ import annotations

from pathlib import Path

from distrlcc.errors import PolicyFileError

SHIPPED = Path(__file__).parents[1] / "policies"
"""Where they lie, each with the row of results that belongs to it."""

RUN_POLICY = "policy.safetensors"
"""A policy's name in its run's folder."""


def shipped_policies() -> dict[str, Path]:
    """Return the files by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.safetensors"))}


def find_policy(name: str) -> Path:
    """Return the file that a user means: a file, a run's folder, or a shipped policy.

    What lies on the disk goes before what is shipped.

    Raises:
        PolicyFileError: There is nothing of that name.
    """
    shipped = shipped_policies()
    if "\0" not in name:
        place = Path(name)
        if place.is_dir():
            return place / RUN_POLICY
        if place.is_file():
            return place
        if name in shipped:
            return shipped[name]
    names = f", or name one that is shipped: {', '.join(shipped)}" if shipped else ""
    raise PolicyFileError(f"no policy file at {name}; check the path{names}")
