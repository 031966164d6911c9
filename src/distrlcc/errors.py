"""All errors; the command line turns each into one line and exit code 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DistrlccError(Exception):
    """Bad input or surroundings: the message says what is wrong, what was expected, what to do."""

    exit_code = 2


class ConfigError(DistrlccError):
    """A key, value, recipe, suite or scheme that does not exist or fit."""


class TraceError(DistrlccError):
    """A trace file that is malformed, empty, decreasing or too large."""


class PolicyFileError(DistrlccError):
    """A policy file that is truncated, foreign or of another shape."""


class CheckpointError(DistrlccError):
    """A checkpoint that is truncated or from another configuration."""


class DatasetError(DistrlccError):
    """A data set that is missing, unfinished, damaged or of another version."""


class OutputError(DistrlccError):
    """A place that cannot be written."""


class LinkError(DistrlccError):
    """An emulated link that this system does not let us make."""


class KernelError(DistrlccError):
    """A kernel that lacks what its own TCP under a policy needs, or does not let us use it."""


class GroupError(DistrlccError):
    """Other processes that are gone, out of reach or of another version."""

    exit_code = 3

    def __init__(self, message: str, *, exit_code: int = 3) -> None:
        """Take the message and, where it is this process's own fault, another exit code."""
        super().__init__(message)
        self.exit_code = exit_code


class WireError(DistrlccError):
    """A datagram that is malformed, cut short, forged or not ours."""


class VersionError(WireError):
    """A datagram of another version of the format; what all versions share can be read."""

    def __init__(self, message: str, *, version: int, kind: int, session: int) -> None:
        """Take the message and the fields that stand in every version's header."""
        super().__init__(message)
        self.version, self.kind, self.session = version, kind, session


def unknown_name(kind: str, name: str, valid: Iterable[str]) -> ConfigError:
    """Build the error for a name that does not exist, nearest valid names first.

    Args:
        kind: What the name stands for, such as ``"scheme"``.
        name: The bad name.
        valid: All valid names.
    """
    names = list(valid)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f": did you mean {' or '.join(near)}?" if near else ""
    shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    return ConfigError(f"unknown {kind} {name!r}{hint} (valid: {shown})")
