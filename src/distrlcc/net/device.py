"""A link's devices, their addresses and routes, in this thread's network namespace.

An end is a TUN device, or where none may be opened a pair of Ethernet devices and a packet socket:
one device of the pair has the address, the other stands in COMMAND's network, so that the pair ends
with that network, and the socket on it reads and writes what the first sends and receives.

Links on a machine share 100.64.0.0/10. Each takes a block of 2^14 addresses, whose first is its
outer end (+1) and inner end (+2); the other fifteen sixteenths are for links inside it, which do
likewise, so that each level above routes one block and needs no address translation. Four levels
fit.

Addresses and routes are set by ioctl, and by rtnetlink what no ioctl does, or none without root.
"""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TUN_PATH = "/dev/net/tun"
MTU = 1500
INNER_NAME = "lcc-link"
QUEUE_PACKETS = 10_000
"""Packets that a device holds until they are read; the usual 500 would lose some unseen."""
LAST_PREFIX = 30
"""Of a block that holds a link's two ends and no links inside."""
_WHOLE = ipaddress.IPv4Network("100.64.0.0/10")
_FIRST_PREFIX = 18
_BITS_PER_LEVEL = 4

_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI_EXCLUSIVE = 0x9001
_SIOCADDRT = 0x890B
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_SIOCGIFADDR, _SIOCSIFADDR = 0x8915, 0x8916
_SIOCGIFNETMASK, _SIOCSIFNETMASK = 0x891B, 0x891C
_SIOCSIFMTU = 0x8922
_SIOCGIFHWADDR, _SIOCETHTOOL = 0x8927, 0x8946
_SET_TRANSMIT_CHECKSUM, _SET_SEGMENTATION = 0x17, 0x24
_SO_RCVBUFFORCE, _SO_SNDBUFFORCE = 33, 32
_BUFFER_BYTES = 64 << 20
_ETH_P_IP = 0x0800
_IFF_UP, _IFF_NOARP, _IFF_UP_RUNNING = 0x1, 0x80, 0x41
_RTF_UP = 0x1
_RTM_NEWLINK, _RTM_DELLINK = 16, 17
_NLM_F_REQUEST_ACK = 0x5
_NLM_F_CREATE_EXCL = 0x600
_NLMSG_ERROR = 2
_IFLA_IFNAME, _IFLA_TXQLEN, _IFLA_LINKINFO, _IFLA_NET_NS_FD = 3, 13, 18, 28
_IFLA_INFO_KIND, _IFLA_INFO_DATA = 1, 2
_VETH_INFO_PEER = 1

# Not c_char, of which ctypes copies what comes before the first zero.
_SocketAddress = ctypes.c_ubyte * 16


class _Route(ctypes.Structure):
    """Linux's ``struct rtentry``; it bears the device's name by pointer."""

    _fields_ = (
        ("pad1", ctypes.c_ulong),
        ("destination", _SocketAddress),
        ("gateway", _SocketAddress),
        ("mask", _SocketAddress),
        ("flags", ctypes.c_ushort),
        ("pad2", ctypes.c_short),
        ("pad3", ctypes.c_ulong),
        ("pad4", ctypes.c_void_p),
        ("metric", ctypes.c_short),
        ("device", ctypes.c_char_p),
        ("mtu", ctypes.c_ulong),
        ("window", ctypes.c_ulong),
        ("initial_rtt", ctypes.c_ushort),
    )


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
    others = [n for n in taken if enclosing is None or not enclosing.subnet_of(n)]
    return [Block(c) for c in candidates if not any(c.overlaps(other) for other in others)]


def parse_routes(text: str) -> list[ipaddress.IPv4Network]:
    """Return the networks of ``/proc/net/route``, without the default route."""
    networks = []
    for line in text.splitlines()[1:]:
        words = line.split()
        destination, mask = (int.from_bytes(bytes.fromhex(words[k]), "little") for k in (1, 7))
        if mask:
            networks.append(ipaddress.IPv4Network((destination, mask.bit_count())))
    return networks


class Tun:
    """A TUN device; it ends with its descriptor, so also with the process."""

    def __init__(self, name: str) -> None:
        """Create it.

        Raises:
            OSError: It cannot be opened or made; EBUSY where the name is taken.
        """
        self._descriptor = os.open(TUN_PATH, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            fcntl.ioctl(
                self._descriptor,
                _TUNSETIFF,
                struct.pack("16sH22x", name.encode(), _IFF_TUN_NO_PI_EXCLUSIVE),
            )
        except OSError:
            os.close(self._descriptor)
            raise
        self.name = name

    def fileno(self) -> int:
        """Return the descriptor, for select."""
        return self._descriptor

    def read(self) -> bytes:
        """Return a packet.

        Raises:
            BlockingIOError: There is none.
        """
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
        """Make the pair; this thread must be in COMMAND's network.

        Args:
            name: The device that will have an address.
            peer: Its other side, here.
            network: Descriptor of the network that ``name`` is for.

        Raises:
            OSError: It is not allowed; EEXIST where a name is taken.
        """
        _create_veth(peer, name, network)
        with _control_socket() as control:
            _set_flags(control, peer, _IFF_UP)
        self._socket = socket.socket(
            socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, socket.htons(_ETH_P_IP)
        )
        self._socket.bind((peer, _ETH_P_IP))
        for option in (_SO_RCVBUFFORCE, _SO_SNDBUFFORCE):
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        self._to: tuple[str, int, int, int, bytes] = (peer, _ETH_P_IP, 0, 0, bytes(6))

    def prepare(self, name: str) -> None:
        """Make the device with the address send whole packets; this thread is in its network."""
        with _control_socket() as control:
            # Else the kernel leaves checksums and segmentation to hardware that is not there.
            for command in (_SET_TRANSMIT_CHECKSUM, _SET_SEGMENTATION):
                value = (ctypes.c_uint32 * 2)(command, 0)
                request = struct.pack("=16sQ16x", name.encode(), ctypes.addressof(value))
                fcntl.ioctl(control, _SIOCETHTOOL, request)
            _set_flags(control, name, _IFF_NOARP)
            reply = fcntl.ioctl(control, _SIOCGIFHWADDR, struct.pack("16s24x", name.encode()))
        self._to = (*self._to[:4], reply[18:24])

    def fileno(self) -> int:
        """Return the descriptor, for select."""
        return self._socket.fileno()

    def read(self) -> bytes:
        """Return a packet.

        Raises:
            BlockingIOError: There is none.
        """
        return self._socket.recv(65536)

    def write(self, data: bytes) -> None:
        """Give the kernel a packet."""
        self._socket.sendto(data, self._to)

    def close(self) -> None:
        """Remove the pair; else it would end with COMMAND's network, a little later."""
        with suppress(OSError):
            _delete_device(self._to[0])
        self._socket.close()


def set_outer(name: str, block: Block) -> None:
    """Give the outer end its address, bring it up, and route the block to it."""
    with _control_socket() as control:
        _start(control, name, block.outer, "255.255.255.255")
        _add_route(control, name, str(block.network.network_address), str(block.network.netmask))


def set_inner(name: str, block: Block) -> None:
    """Give the inner end its address, bring it and loopback up, and make it the default route."""
    with _control_socket() as control:
        _set_flags(control, "lo")
        # The mask tells a link inside this one which block it may take a part of.
        _start(control, name, block.inner, str(block.network.netmask))
        _add_route(control, name, "0.0.0.0", "0.0.0.0")
    with suppress(OSError):  # read-only in some containers; then links do not nest
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def enable_loopback() -> None:
    """Bring this network's loopback up."""
    with _control_socket() as control:
        _set_flags(control, "lo")


def address_and_mask(name: str) -> tuple[str, str] | None:
    """Return a device's IPv4 address and netmask; None where there is no such device."""
    with _control_socket() as control:
        request = struct.pack("16s24x", name.encode())
        try:
            replies = [fcntl.ioctl(control, k, request) for k in (_SIOCGIFADDR, _SIOCGIFNETMASK)]
        except OSError:
            return None
    address, mask = (socket.inet_ntoa(reply[20:24]) for reply in replies)
    return address, mask


def _control_socket() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def _address(text: str) -> bytes:
    return struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(text))


def _set(control: socket.socket, request: int, name: str, value: bytes) -> None:
    fcntl.ioctl(control, request, struct.pack("16s24s", name.encode(), value))


def _set_flags(control: socket.socket, name: str, flags: int = _IFF_UP_RUNNING) -> None:
    reply = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16s24x", name.encode()))
    before = struct.unpack_from("=H", reply, 16)[0]
    _set(control, _SIOCSIFFLAGS, name, struct.pack("=H", before | flags))


def _start(control: socket.socket, name: str, address: str, mask: str) -> None:
    with suppress(OSError):  # no IPv6 in this kernel: then nothing solicits routers on the link
        Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")
    _set(control, _SIOCSIFMTU, name, struct.pack("=i", MTU))
    _set_queue_length(name, QUEUE_PACKETS)
    _set(control, _SIOCSIFADDR, name, _address(address))
    # Before it is up: an Ethernet device's address would else bring a route to all of 100.0.0.0/8.
    _set(control, _SIOCSIFNETMASK, name, _address(mask))
    _set_flags(control, name)


def _add_route(control: socket.socket, name: str, network: str, mask: str) -> None:
    entry = _Route(
        destination=_SocketAddress(*_address(network)),
        gateway=_SocketAddress(*_address("0.0.0.0")),
        mask=_SocketAddress(*_address(mask)),
        flags=_RTF_UP,
        device=name.encode(),
    )
    fcntl.ioctl(control, _SIOCADDRT, bytes(entry))


def _set_queue_length(name: str, packets: int) -> None:
    """Set how many packets a device holds until they are read."""
    queue = _attribute(_IFLA_TXQLEN, struct.pack("=I", packets))
    _request(_link(socket.if_nametoindex(name)) + queue)


def _create_veth(name: str, peer: str, peer_namespace: int) -> None:
    """Make a pair of devices: one in this network, its peer in that of a descriptor."""
    far = _link(0) + _name(peer) + _attribute(_IFLA_NET_NS_FD, struct.pack("=I", peer_namespace))
    kind = _attribute(_IFLA_INFO_KIND, b"veth")
    data = _attribute(_IFLA_INFO_DATA, _attribute(_VETH_INFO_PEER, far))
    info = _attribute(_IFLA_LINKINFO, kind + data)
    _request(_link(0) + _name(name) + info, _NLM_F_CREATE_EXCL)


def _delete_device(name: str) -> None:
    """Remove a device, and with one of a pair the other."""
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
