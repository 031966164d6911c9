"""The two ends of an emulated link: the outer one here, the inner one in COMMAND's network."""

from __future__ import annotations

import errno
import ipaddress
from pathlib import Path
from typing import Protocol

from distrlcc.errors import LinkError
from distrlcc.net.blocks import Block, free_blocks, parse_routes
from distrlcc.net.device import INNER_NAME, Tun, address_and_mask, set_inner, set_outer
from distrlcc.net.namespace import REMEDY


class Descriptor(Protocol):
    """What select waits for."""

    def fileno(self) -> int:
        """Return the descriptor."""


class End(Descriptor, Protocol):
    """Where IP packets leave the kernel and come back to it."""

    def read(self) -> bytes:
        """Return a packet; BlockingIOError where there is none."""

    def write(self, data: bytes) -> None:
        """Give the kernel a packet."""

    def close(self) -> None:
        """Remove the device."""


def enclosing_block() -> ipaddress.IPv4Network | None:
    """Return the block of the link that this network is inside of; None outside all."""
    found = address_and_mask(INNER_NAME)
    if found is None:
        return None
    return ipaddress.IPv4Network("/".join(found), strict=False)


def open_outer() -> tuple[Tun, Block]:
    """Make the outer end, with addresses that no other link or route here has.

    Raises:
        LinkError: Devices cannot be made, or no addresses are left.
    """
    enclosing = enclosing_block()
    routes = parse_routes(Path("/proc/self/net/route").read_text())
    for block in free_blocks(enclosing, routes):
        try:
            device = Tun(block.name)
        except OSError as error:
            if error.errno == errno.EBUSY:  # another link has just taken this block
                continue
            raise LinkError(f"no TUN device can be made ({error.strerror}); {REMEDY}") from None
        try:
            set_outer(block.name, block)
        except OSError as error:
            device.close()
            raise LinkError(
                f"the link's outer end cannot be set up ({error.strerror}); {REMEDY}"
            ) from None
        return device, block
    if enclosing is not None and enclosing.prefixlen >= 30:
        raise LinkError("links are nested too deeply; at most four fit into each other")
    raise LinkError("no addresses are left in 100.64.0.0/10; end other links or routes there")


def open_inner(block: Block) -> Tun:
    """Make the inner end, in a new network.

    Raises:
        LinkError: It cannot be made.
    """
    try:
        device = Tun(INNER_NAME)
        set_inner(INNER_NAME, block)
    except OSError as error:
        raise LinkError(
            f"the link's inner end cannot be set up ({error.strerror}); {REMEDY}"
        ) from None
    return device
