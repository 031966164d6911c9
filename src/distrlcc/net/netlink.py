"""The few requests to Linux's rtnetlink that no ioctl makes, or none without root."""

from __future__ import annotations

import os
import socket
import struct

_RTM_NEWLINK, _RTM_DELLINK = 16, 17
_NLM_F_REQUEST_ACK = 0x5
_NLM_F_CREATE_EXCL = 0x600
_NLMSG_ERROR = 2
_IFLA_IFNAME, _IFLA_TXQLEN, _IFLA_LINKINFO, _IFLA_NET_NS_FD = 3, 13, 18, 28
_IFLA_INFO_KIND, _IFLA_INFO_DATA = 1, 2
_VETH_INFO_PEER = 1


def set_queue_length(name: str, packets: int) -> None:
    """Set how many packets a device holds until they are read.

    Raises:
        OSError: There is no such device, or it is not allowed.
    """
    queue = _attribute(_IFLA_TXQLEN, struct.pack("=I", packets))
    _request(_link(socket.if_nametoindex(name)) + queue)


def create_veth(name: str, peer: str, peer_namespace: int) -> None:
    """Make a pair of devices that are joined by a wire.

    Args:
        name: The one in this network.
        peer: The other.
        peer_namespace: Descriptor of its network.

    Raises:
        OSError: It is not allowed; EEXIST where a name is taken.
    """
    far = _link(0) + _name(peer) + _attribute(_IFLA_NET_NS_FD, struct.pack("=I", peer_namespace))
    kind = _attribute(_IFLA_INFO_KIND, b"veth")
    data = _attribute(_IFLA_INFO_DATA, _attribute(_VETH_INFO_PEER, far))
    _request(
        _link(0) + _name(name) + _attribute(_IFLA_LINKINFO, kind + data), _NLM_F_CREATE_EXCL
    )  # fmt: skip


def delete_device(name: str) -> None:
    """Remove a device, and with one of a pair the other.

    Raises:
        OSError: There is no such device, or it is not allowed.
    """
    _request(_link(socket.if_nametoindex(name)), kind=_RTM_DELLINK)


def _link(index: int) -> bytes:
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, 0, 0)


def _name(name: str) -> bytes:
    return _attribute(_IFLA_IFNAME, name.encode() + b"\0")


def _attribute(kind: int, value: bytes) -> bytes:
    data = struct.pack("=HH", 4 + len(value), kind) + value
    return data + bytes(-len(data) % 4)


def _request(payload: bytes, flags: int = 0, kind: int = _RTM_NEWLINK) -> None:
    header = struct.pack("=IHHII", 16 + len(payload), kind, _NLM_F_REQUEST_ACK | flags, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as control:
        control.send(header + payload)
        reply = control.recv(65536)
    answer, error = struct.unpack_from("=H", reply, 4)[0], struct.unpack_from("=i", reply, 16)[0]
    if answer == _NLMSG_ERROR and error:
        raise OSError(-error, os.strerror(-error))
