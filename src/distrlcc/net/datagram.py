"""A packet at an emulated bottleneck, with its contents, and the ports that it names."""

from __future__ import annotations

from dataclasses import dataclass

from distrlcc.sim.queues import Packet

_TCP, _UDP = 6, 17
_IPV4_BYTES, _IPV6_BYTES = 20, 40
_FRAGMENT, _AUTHENTICATION = 44, 51
# Hop-by-hop options, routing and destination options give their length in units of 8 bytes.
_OPTIONS = (0, 43, 60)


@dataclass(slots=True)
class Datagram(Packet):
    """A packet with its contents."""

    data: bytes = b""


def ports(data: bytes) -> tuple[int, int] | None:
    """Return the source and destination port of an IP packet that carries UDP or TCP.

    None where it carries something else, is cut short, or is a later fragment, which has none.
    """
    version = data[0] >> 4 if data else 0
    if version == 4 and len(data) >= _IPV4_BYTES:
        protocol, place = data[9], 4 * (data[0] & 15)
        if place < _IPV4_BYTES or int.from_bytes(data[6:8]) & 0x1FFF:
            return None
    elif version == 6 and len(data) >= _IPV6_BYTES:
        protocol, place = _after_extensions(data)
    else:
        return None
    if protocol not in (_TCP, _UDP) or len(data) < place + 4:
        return None
    return int.from_bytes(data[place : place + 2]), int.from_bytes(data[place + 2 : place + 4])


def _after_extensions(data: bytes) -> tuple[int, int]:
    """Return what an IPv6 packet carries, and where; -1 for what cannot be told."""
    protocol, place = data[6], _IPV6_BYTES
    while len(data) >= place + 8:
        if protocol in _OPTIONS:
            length = 8 * (data[place + 1] + 1)
        elif protocol == _AUTHENTICATION:
            length = 4 * (data[place + 1] + 2)
        elif protocol == _FRAGMENT:
            if int.from_bytes(data[place + 2 : place + 4]) >> 3:
                return -1, place
            length = 8
        else:
            break
        protocol, place = data[place], place + length
    return protocol, place
