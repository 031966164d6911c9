"""What the machines of a Ray cluster must have in common."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from distrlcc.errors import GroupError
from distrlcc.runs.identity import check_identity, identity


@dataclass(frozen=True)
class _Nothing:
    """No configuration: only versions must agree."""


def node_identity() -> dict[str, str]:
    """Return the versions that must agree; Ray wants Python's to the patch level."""
    try:
        ray = version("ray")
    except PackageNotFoundError:
        ray = "not installed"
    common = identity(_Nothing(), python=platform.python_version(), ray=ray)
    return {name: value for name, value in common.items() if value}


def differences(head: Mapping[str, str]) -> str:
    """Return a table of what differs between the head and this machine; empty if nothing does."""
    try:
        check_identity(head, node_identity())
    except GroupError as error:
        return str(error).partition("\n")[2]
    return ""


def check_node(head: Mapping[str, str]) -> None:
    """Compare this machine with the head.

    Raises:
        GroupError: They differ; the message is a table.
    """
    if table := differences(head):
        raise GroupError(
            "this machine does not match the head ('master' below); install the same on both:\n"
            f"{table}",
            exit_code=2,
        )
