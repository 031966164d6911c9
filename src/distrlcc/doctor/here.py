"""The checks of this machine alone."""

from __future__ import annotations

from distrlcc.doctor.emulation import emulation_rows
from distrlcc.doctor.head import head_rows
from distrlcc.doctor.machine import look, machine_rows
from distrlcc.doctor.row import HERE, Row, judged
from distrlcc.doctor.storage import local_storage_row
from distrlcc.parallel.interface import interfaces


def here_rows(head: str = "", interface: str = "", place: str = "") -> list[Row]:
    """Check this machine.

    Args:
        head: HOST:PORT of a cluster that it could join; empty leaves that out.
        interface: Network interface towards it instead of the route's.
        place: Storage to write to, a folder or a URL; empty leaves that out.

    Raises:
        ConfigError: The head's address is none.
    """
    rows = machine_rows(look(), HERE, cluster=bool(head))
    if head:
        rows += head_rows(head, interface)
    else:
        names = ", ".join(map(str, interfaces()))
        rows.append(judged("interfaces", HERE, names or "none", warn="" if names else "is it up?"))
    rows += emulation_rows(HERE)
    if place:
        rows.append(local_storage_row(place, HERE))
    return rows
