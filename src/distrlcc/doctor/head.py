"""Whether this machine could join a cluster."""

from __future__ import annotations

from distrlcc.cluster.ray_address import parse_address
from distrlcc.cluster.ray_cluster import meet
from distrlcc.cluster.ray_identity import differences
from distrlcc.cluster.ray_ports import Ports
from distrlcc.cluster.ray_state import read_state
from distrlcc.cluster.ray_token import known_token
from distrlcc.doctor.row import HERE, Row, judged
from distrlcc.errors import DistrlccError, GroupError
from distrlcc.parallel.interface import interface_towards, resolve
from distrlcc.parallel.token import TOKEN


def head_rows(head: str, interface: str = "") -> list[Row]:
    """Look at the way to a cluster's head, and at what its gate says.

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
        free = read_state() is None  # else Ray listens where the head would try
        welcome = meet(address, Ports(port), token, own, call_back=free)
    except GroupError as error:
        return [*rows, judged("head", HERE, str(error), fail="see what was found")]
    reached = " and reaches this machine" if free else "; this machine is in a cluster already"
    rows.append(judged("head", HERE, f"{head} knows the token{reached}"))
    table = differences(welcome.identity)
    rows.append(
        judged(
            "same versions", HERE, table or f"as on {host}",
            fail="install the head's ('master')" if table else "",
        )
    )  # fmt: skip
    return rows
