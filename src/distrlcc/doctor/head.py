"""Whether this machine could join a cluster."""

from __future__ import annotations

from distrlcc.cluster.session import differences, parse_address, read_row
from distrlcc.cluster.state import known_token
from distrlcc.doctor.row import HERE, Row, judged
from distrlcc.errors import DistrlccError, GroupError
from distrlcc.parallel.interface import interface_towards, resolve
from distrlcc.parallel.token import TOKEN


def head_rows(head: str, interface: str = "") -> list[Row]:
    """Look at the way to a cluster's head, and at the versions that it has written.

    Raises:
        ConfigError: The address is none.
    """
    host, port = parse_address(head)
    try:
        address = resolve(host)
        own = interface_towards(address, interface)
    except DistrlccError as error:
        return [judged("interface", HERE, str(error), fail="give an address of the head's network")]
    rows = [judged("interface", HERE, f"{own} leads to {host}")]
    token = known_token()
    if not token:
        return [*rows, judged("head", HERE, "not asked", warn=f"set {TOKEN} to that cluster's")]
    try:
        versions = read_row(f"{address}:{port}", token)
    except GroupError as error:
        return [*rows, judged("head", HERE, str(error), fail="see what was found")]
    rows.append(judged("head", HERE, f"{head} knows the token"))
    table = differences(versions)
    rows.append(
        judged(
            "same versions", HERE, table or f"as on {host}",
            fail="install the head's ('master')" if table else "",
        )
    )  # fmt: skip
    return rows
