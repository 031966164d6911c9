"""A link's devices, their addresses and routes, in this thread's network namespace.

An end is a TUN device. If none may be opened, it is a pair of Ethernet devices with a packet
socket. One device of the pair has the address. The other stands in COMMAND's network, so that the
pair ends with that network; its socket reads and writes what the first sends and receives.

Links on a machine share 100.64.0.0/10. Each takes a block of 2^14 addresses. The first are its
outer end (+1) and inner end (+2). The other fifteen sixteenths are for links inside it, which do
likewise, so each level routes one block without address translation. Four levels fit. Devices,
addresses and routes are set through Linux's rtnetlink (see rtnetlink(7)).
"""

import ctypes
import errno
import fcntl
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from distrlcc.errors import LinkError
from distrlcc.net.emulator.namespace import REMEDY, enable_loopback, inside
from distrlcc.net.udp_socket import give_room

TUN_PATH = "/dev/net/tun"
MTU = 1500
INNER_NAME = "lcc-link"
QUEUE_PACKETS = 10_000  # until they are read; the usual 500 would lose some unseen
LAST_PREFIX = 30  # of a block that holds a link's two ends and no links inside
_WHOLE = ipaddress.IPv4Network("100.64.0.0/10")
_ANYWHERE = ipaddress.IPv4Network("0.0.0.0/0")
_FIRST_PREFIX = 18
_BITS_PER_LEVEL = 4

_OUTER_PEER, _INNER_PEER = "lcc-outer", "lcc-inner"
_NO_TUN = (errno.ENOENT, errno.EACCES, errno.ENODEV, errno.ENXIO)
"""Errors of opening /dev/net/tun: it is missing, closed to us or without a driver."""

_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI_EXCLUSIVE = 0x9001
_SIOCGIFADDR, _SIOCGIFNETMASK, _SIOCETHTOOL = 0x8915, 0x891B, 0x8946
_SET_TRANSMIT_CHECKSUM, _SET_SEGMENTATION = 0x17, 0x24
_BUFFER_BYTES = 64 << 20
_ETH_P_IP = 0x0800
_VETH_ADDRESS = b"\x02dlcc\x01"  # Ethernet address, our own, of a pair's device with the IP address
_IFF_UP, _IFF_NOARP = 0x1, 0x80

_RTM_NEWLINK, _RTM_DELLINK, _RTM_NEWADDR, _RTM_NEWROUTE = 16, 17, 20, 24
_RTM_NEWRULE, _RTM_DELRULE = 32, 33
_NLM_F_REQUEST_ACK, _NLM_F_CREATE_EXCL = 0x5, 0x600
_NLMSG_ERROR = 2
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_TXQLEN = 1, 3, 4, 13
_IFLA_LINKINFO, _IFLA_NET_NS_FD = 18, 28
_IFLA_INFO_KIND, _IFLA_INFO_DATA, _VETH_INFO_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_DST, _RTA_OIF = 1, 4
_MAIN_TABLE, _BOOT, _LINK_SCOPE, _UNICAST = 254, 3, 253, 1
_LOCAL_TABLE, _TO_TABLE, _FIB_RULE_INVERT = 255, 1, 0x2
_FRA_PRIORITY, _FRA_FWMARK, _FRA_FWMASK = 6, 10, 16


@dataclass(frozen=True)
class Block:
    """A link's addresses."""

    network: ipaddress.IPv4Network

    @property
    def outer(self) -> str:
        """The address outside COMMAND's network: ``MAHIMAHI_BASE``."""
        return str(self.network[1])

    @property
    def inner(self) -> str:
        """COMMAND's address."""
        return str(self.network[2])

    @property
    def name(self) -> str:
        """The outer end's device name; that one exists is what reserves the block."""
        place = int(self.network.network_address) - int(_WHOLE.network_address)
        return f"lcc{place:06x}"


def free_blocks(
    enclosing: ipaddress.IPv4Network | None, taken: Iterable[ipaddress.IPv4Network]
) -> list[Block]:
    """Return the blocks that a new link may take, in an ``enclosing`` link's block, best first."""
    if enclosing is None:
        candidates = list(_WHOLE.subnets(new_prefix=_FIRST_PREFIX))
    elif enclosing.prefixlen >= LAST_PREFIX:
        return []
    else:
        # The first part holds the enclosing link's own two ends.
        candidates = list(enclosing.subnets(prefixlen_diff=_BITS_PER_LEVEL))[1:]
    others = [n for n in taken if enclosing is None or not enclosing.subnet_of(n)]
    return [Block(c) for c in candidates if not any(c.overlaps(other) for other in others)]


def rested(blocks: list[Block], *, seconds: float) -> list[Block]:
    """Return blocks in another order every half second, and in the first one again in 2 minutes.

    A link takes addresses that no link has had lately. A program that still sends to a link that
    has ended would otherwise take part in this one's losses and rate.
    """
    place = int(2 * seconds) % max(len(blocks), 1)
    return blocks[place:] + blocks[:place]


def parse_routes(text: str) -> list[ipaddress.IPv4Network]:
    """Return the networks of ``/proc/net/route``, without the default route."""
    rows = [line.split() for line in text.splitlines()[1:]]
    pairs = [[int.from_bytes(bytes.fromhex(row[k]), "little") for k in (1, 7)] for row in rows]
    return [ipaddress.IPv4Network((to, mask.bit_count())) for to, mask in pairs if mask]


class Tun:
    """A TUN device; it ends with its descriptor, so also with the process."""

    def __init__(self, name: str) -> None:
        """Create it; raises OSError, EBUSY where the name is taken."""
        self._descriptor = os.open(TUN_PATH, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        request = struct.pack("16sH22x", name.encode(), _IFF_TUN_NO_PI_EXCLUSIVE)
        try:
            fcntl.ioctl(self._descriptor, _TUNSETIFF, request)
        except OSError:
            os.close(self._descriptor)
            raise

    def fileno(self) -> int:
        """Return the descriptor, for select."""
        return self._descriptor

    def read(self) -> bytes:
        """Return a packet; raise BlockingIOError if none waits."""
        return os.read(self._descriptor, 65536)

    def write(self, data: bytes) -> None:
        """Give the kernel a packet."""
        os.write(self._descriptor, data)

    def close(self) -> None:
        """Remove the device."""
        os.close(self._descriptor)


class VethEnd:
    """The packet socket's side of a pair."""

    def __init__(self, name: str, peer: str, network: int) -> None:
        """Make ``name`` in a descriptor's network and ``peer`` here; raises OSError."""
        # Make the pair, and bring this side up.
        far = _link(flags=_IFF_NOARP) + _attribute(_IFLA_IFNAME, name.encode() + b"\0")
        far += _attribute(_IFLA_NET_NS_FD, struct.pack("=I", network))
        far += _attribute(_IFLA_ADDRESS, _VETH_ADDRESS)
        info = _attribute(_IFLA_INFO_KIND, b"veth")
        info += _attribute(_IFLA_INFO_DATA, _attribute(_VETH_INFO_PEER, far))
        near = _attribute(_IFLA_IFNAME, peer.encode() + b"\0") + _attribute(_IFLA_LINKINFO, info)
        _request(_RTM_NEWLINK, _link(flags=_IFF_UP) + near, _NLM_F_CREATE_EXCL)
        # Open the socket on it.
        self._peer = peer
        self._socket = socket.socket(
            socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, socket.htons(_ETH_P_IP)
        )
        self._socket.bind((peer, _ETH_P_IP))
        give_room(self._socket, _BUFFER_BYTES)

    def prepare(self, name: str) -> None:
        """Make the device with the address send whole packets; this thread is in its network."""
        # Else the kernel leaves checksums and segmentation to hardware that is not there.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            for command in (_SET_TRANSMIT_CHECKSUM, _SET_SEGMENTATION):
                value = (ctypes.c_uint32 * 2)(command, 0)
                request = struct.pack("=16sQ16x", name.encode(), ctypes.addressof(value))
                fcntl.ioctl(control, _SIOCETHTOOL, request)

    def fileno(self) -> int:
        """Return the descriptor, for select."""
        return self._socket.fileno()

    def read(self) -> bytes:
        """Return a packet; raise BlockingIOError if none waits."""
        return self._socket.recv(65536)

    def write(self, data: bytes) -> None:
        """Give the kernel a packet."""
        self._socket.sendto(data, (self._peer, _ETH_P_IP, 0, 0, _VETH_ADDRESS))

    def close(self) -> None:
        """Remove the pair; else it would end with COMMAND's network, a little later."""
        with suppress(OSError):
            _request(_RTM_DELLINK, _link(self._peer))
        self._socket.close()


End = Tun | VethEnd  # where IP packets leave the kernel and come back to it


def open_outer(outside: int) -> tuple[End, Block]:
    """Make the outer end in a descriptor's network, addresses of its own; raises LinkError."""
    with inside(outside):
        inner = address_of(INNER_NAME)
        routes = parse_routes(Path("/proc/thread-self/net/route").read_text())
    enclosing = inner.network if inner is not None else None
    for block in rested(free_blocks(enclosing, routes), seconds=time.monotonic()):
        try:
            own = ipaddress.IPv4Interface(f"{block.outer}/32")
            return _open(block.name, _OUTER_PEER, outside, own, block.network), block
        except OSError as error:
            if error.errno in (errno.EBUSY, errno.EEXIST):  # another link has just taken it
                continue
            raise _refused("outer", error) from None
    if enclosing is not None and enclosing.prefixlen == LAST_PREFIX:
        raise LinkError("links are nested too deeply; at most four fit into each other")
    raise LinkError("no addresses are left in 100.64.0.0/10; end other links or routes there")


def open_inner(block: Block) -> End:
    """Make the inner end, in this thread's network; raises LinkError."""
    # The prefix tells a link inside this one which block it may take a part of.
    own = ipaddress.IPv4Interface(f"{block.inner}/{block.network.prefixlen}")
    with open("/proc/thread-self/ns/net") as here:
        try:
            enable_loopback()
            device = _open(INNER_NAME, _INNER_PEER, here.fileno(), own, _ANYWHERE)
        except OSError as error:
            raise _refused("inner", error) from None
    with suppress(OSError):  # read-only in some containers; then links do not nest
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    return device


def send_marked_out() -> None:
    """Let marked packets (SO_MARK) for this network leave by an inner end; raises LinkError."""
    unmarked = _attribute(_FRA_FWMARK, bytes(4)) + _attribute(_FRA_FWMASK, b"\xff" * 4)
    try:
        _rule(_RTM_NEWRULE, 2, _LOCAL_TABLE)
        _rule(_RTM_NEWRULE, 1, _MAIN_TABLE, unmarked, flags=_FIB_RULE_INVERT)
        _rule(_RTM_DELRULE, 0, _LOCAL_TABLE)
        Path(f"/proc/sys/net/ipv4/conf/{INNER_NAME}/accept_local").write_text("1")
    except OSError as error:
        raise _refused("inner", error) from None


def _rule(kind: int, priority: int, table: int, match: bytes = b"", *, flags: int = 0) -> None:
    rule = struct.pack("=8BI", socket.AF_INET, 0, 0, 0, table, 0, 0, _TO_TABLE, flags)
    rule += _attribute(_FRA_PRIORITY, struct.pack("=I", priority)) + match
    _request(kind, rule, _NLM_F_CREATE_EXCL if kind == _RTM_NEWRULE else 0)


def _open(
    name: str, peer: str, network: int, own: ipaddress.IPv4Interface, route: ipaddress.IPv4Network
) -> End:
    """Make an end in the network of a descriptor, with its own address and a route to it."""
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
            _start(name, own)
            _add_route(name, route)
    except OSError:
        device.close()
        raise
    return device


def _refused(which: str, error: OSError) -> LinkError:
    return LinkError(f"the link's {which} end cannot be made ({error.strerror}); {REMEDY}")


def address_of(name: str) -> ipaddress.IPv4Interface | None:
    """Return a device's IPv4 address; None where it has none, or is not there."""
    request = struct.pack("16s24x", name.encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        try:
            replies = [fcntl.ioctl(control, k, request) for k in (_SIOCGIFADDR, _SIOCGIFNETMASK)]
        except OSError:
            return None
    address, mask = (socket.inet_ntoa(reply[20:24]) for reply in replies)
    return ipaddress.IPv4Interface(f"{address}/{mask}")


def _start(name: str, address: ipaddress.IPv4Interface) -> None:
    with suppress(OSError):  # no IPv6 in this kernel: then nothing solicits routers on the link
        Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")
    index, prefix = socket.if_nametoindex(name), address.network.prefixlen
    own = struct.pack("=BBBBI", socket.AF_INET, prefix, 0, 0, index)
    own += _attribute(_IFA_LOCAL, address.packed) + _attribute(_IFA_ADDRESS, address.packed)
    _request(_RTM_NEWADDR, own, _NLM_F_CREATE_EXCL)
    limits = _attribute(_IFLA_MTU, struct.pack("=I", MTU))
    limits += _attribute(_IFLA_TXQLEN, struct.pack("=I", QUEUE_PACKETS))
    _request(_RTM_NEWLINK, _link(name, _IFF_UP) + limits)


def _add_route(name: str, network: ipaddress.IPv4Network) -> None:
    kind = (network.prefixlen, 0, 0, _MAIN_TABLE, _BOOT, _LINK_SCOPE, _UNICAST, 0)
    route = struct.pack("=BBBBBBBBI", socket.AF_INET, *kind)
    route += _attribute(_RTA_DST, network.network_address.packed)
    route += _attribute(_RTA_OIF, struct.pack("=I", socket.if_nametoindex(name)))
    _request(_RTM_NEWROUTE, route, _NLM_F_CREATE_EXCL)


def _link(name: str = "", flags: int = 0) -> bytes:
    """Return the beginning of a request about a device, or a new one, whose flags it sets."""
    index = socket.if_nametoindex(name) if name else 0
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, flags, flags)


def _attribute(kind: int, value: bytes) -> bytes:
    data = struct.pack("=HH", 4 + len(value), kind) + value
    return data + bytes(-len(data) % 4)


def _request(kind: int, payload: bytes, flags: int = 0) -> None:
    """Send the kernel a request; OSError where it refuses."""
    header = struct.pack("=IHHII", 16 + len(payload), kind, _NLM_F_REQUEST_ACK | flags, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as control:
        control.send(header + payload)
        reply = control.recv(65536)
    answer, error = struct.unpack_from("=H", reply, 4)[0], struct.unpack_from("=i", reply, 16)[0]
    if answer == _NLMSG_ERROR and error:
        raise OSError(-error, os.strerror(-error))
