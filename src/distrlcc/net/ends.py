"""The two ends of an emulated link: the outer one here, the inner one in COMMAND's network."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from distrlcc.errors import LinkError
from distrlcc.net.device import (
    INNER_NAME,
    LAST_PREFIX,
    Block,
    Tun,
    VethEnd,
    free_blocks,
    network_of,
    parse_routes,
    set_inner,
    set_outer,
)
from distrlcc.net.namespace import REMEDY, inside

_OUTER_PEER, _INNER_PEER = "lcc-outer", "lcc-inner"
# What opening /dev/net/tun says where it is missing, closed to us or without a driver.
_NO_TUN = (errno.ENOENT, errno.EACCES, errno.ENODEV, errno.ENXIO)


End = Tun | VethEnd
"""Where IP packets leave the kernel and come back to it."""


def open_outer(outside: int) -> tuple[End, Block]:
    """Make the outer end in the network of a descriptor; this thread is in COMMAND's.

    No other link or route there has its addresses.

    Raises:
        LinkError: Devices cannot be made, or no addresses are left.
    """
    with inside(outside):
        enclosing = network_of(INNER_NAME)
        routes = parse_routes(Path("/proc/thread-self/net/route").read_text())
    for block in free_blocks(enclosing, routes):
        try:
            return _open(block.name, _OUTER_PEER, outside, block, set_outer), block
        except OSError as error:
            if error.errno in (errno.EBUSY, errno.EEXIST):  # another link has just taken it
                continue
            raise _refused("outer", error) from None
    if enclosing is not None and enclosing.prefixlen == LAST_PREFIX:
        raise LinkError("links are nested too deeply; at most four fit into each other")
    raise LinkError("no addresses are left in 100.64.0.0/10; end other links or routes there")


def open_inner(block: Block) -> End:
    """Make the inner end, in this thread's network.

    Raises:
        LinkError: It cannot be made.
    """
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _open(INNER_NAME, _INNER_PEER, here, block, set_inner)
    except OSError as error:
        raise _refused("inner", error) from None
    finally:
        os.close(here)


def _open(
    name: str, peer: str, network: int, block: Block, set_up: Callable[[str, Block], None]
) -> End:
    device: End
    try:
        with inside(network):
            device = Tun(name)
    except OSError as error:
        if error.errno not in _NO_TUN:
            raise
        device = VethEnd(name, peer, network)
    try:
        with inside(network):
            if isinstance(device, VethEnd):
                device.prepare(name)
            set_up(name, block)
    except OSError:
        device.close()
        raise
    return device


def _refused(which: str, error: OSError) -> LinkError:
    return LinkError(f"the link's {which} end cannot be made ({error.strerror}); {REMEDY}")
