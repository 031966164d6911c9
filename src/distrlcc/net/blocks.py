"""Addresses of emulated links, so that links beside and inside each other never collide.

Links on a machine share 100.64.0.0/10. Each takes a block of 2^14 addresses, whose first is its
outer end (+1) and inner end (+2); the other fifteen sixteenths are for links inside it, which do
likewise, so that each level above routes one block and needs no address translation. Four levels
fit.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

_WHOLE = ipaddress.IPv4Network("100.64.0.0/10")
_FIRST_PREFIX = 18
_BITS_PER_LEVEL = 4
LAST_PREFIX = 30
"""Of a block that holds a link's two ends and no links inside."""


@dataclass(frozen=True)
class Block:
    """A link's addresses."""

    network: ipaddress.IPv4Network

    @property
    def outer(self) -> str:
        """Return the address outside COMMAND's network: ``MAHIMAHI_BASE``."""
        return str(self.network[1])

    @property
    def inner(self) -> str:
        """Return COMMAND's address."""
        return str(self.network[2])

    @property
    def name(self) -> str:
        """Return the outer end's device name; that one exists is what reserves the block."""
        place = int(self.network.network_address) - int(_WHOLE.network_address)
        return f"lcc{place:06x}"


def free_blocks(
    enclosing: ipaddress.IPv4Network | None, taken: Iterable[ipaddress.IPv4Network]
) -> list[Block]:
    """Return the blocks that a new link may take, best first.

    Args:
        enclosing: The block of the link that this network is inside of; None outside all.
        taken: Networks that have routes here.
    """
    if enclosing is None:
        candidates = list(_WHOLE.subnets(new_prefix=_FIRST_PREFIX))
    elif enclosing.prefixlen >= LAST_PREFIX:
        return []
    else:
        # The first part holds the enclosing link's own two ends.
        candidates = list(enclosing.subnets(prefixlen_diff=_BITS_PER_LEVEL))[1:]
    others = [network for network in taken if enclosing is None or not _holds(network, enclosing)]
    return [Block(c) for c in candidates if not any(c.overlaps(other) for other in others)]


def _holds(network: ipaddress.IPv4Network, enclosing: ipaddress.IPv4Network) -> bool:
    return enclosing.subnet_of(network)


def parse_routes(text: str) -> list[ipaddress.IPv4Network]:
    """Return the networks of ``/proc/net/route``, without the default route."""
    networks = []
    for line in text.splitlines()[1:]:
        words = line.split()
        destination, mask = (int.from_bytes(bytes.fromhex(words[k]), "little") for k in (1, 7))
        if mask:
            networks.append(ipaddress.IPv4Network((destination, mask.bit_count())))
    return networks
