"""TUN devices and their addresses and routes, by ioctl, in this thread's network namespace."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

from distrlcc.net.blocks import Block
from distrlcc.net.netlink import set_queue_length

TUN_PATH = "/dev/net/tun"
MTU = 1500
INNER_NAME = "lcc-link"
QUEUE_PACKETS = 10_000
"""Packets that a device holds until they are read; the usual 500 would lose some unseen."""

_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI_EXCLUSIVE = 0x9001
_SIOCADDRT = 0x890B
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_SIOCGIFADDR, _SIOCSIFADDR = 0x8915, 0x8916
_SIOCGIFNETMASK, _SIOCSIFNETMASK = 0x891B, 0x891C
_SIOCSIFMTU = 0x8922
_IFF_UP_RUNNING = 0x41
_RTF_UP = 0x1


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


def set_outer(name: str, block: Block) -> None:
    """Give the outer end its address, bring it up, and route the block to it."""
    with control_socket() as control:
        _start(control, name, block.outer, "255.255.255.255")
        _add_route(control, name, str(block.network.network_address), str(block.network.netmask))


def set_inner(name: str, block: Block) -> None:
    """Give the inner end its address, bring it and loopback up, and make it the default route."""
    with control_socket() as control:
        set_flags(control, "lo")
        # The mask tells a link inside this one which block it may take a part of.
        _start(control, name, block.inner, str(block.network.netmask))
        _add_route(control, name, "0.0.0.0", "0.0.0.0")
    with suppress(OSError):  # read-only in some containers; then links do not nest
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def enable_loopback() -> None:
    """Bring this network's loopback up."""
    with control_socket() as control:
        set_flags(control, "lo")


def address_and_mask(name: str) -> tuple[str, str] | None:
    """Return a device's IPv4 address and netmask; None where there is no such device."""
    with control_socket() as control:
        request = struct.pack("16s24x", name.encode())
        try:
            replies = [fcntl.ioctl(control, k, request) for k in (_SIOCGIFADDR, _SIOCGIFNETMASK)]
        except OSError:
            return None
    address, mask = (socket.inet_ntoa(reply[20:24]) for reply in replies)
    return address, mask


def control_socket() -> socket.socket:
    """Return a socket for ioctls on devices."""
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def _address(text: str) -> bytes:
    return struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(text))


def _set(control: socket.socket, request: int, name: str, value: bytes) -> None:
    fcntl.ioctl(control, request, struct.pack("16s24s", name.encode(), value))


def set_flags(control: socket.socket, name: str, flags: int = _IFF_UP_RUNNING) -> None:
    """Set flags of a device beside those it has; up, if nothing is said."""
    reply = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16s24x", name.encode()))
    before = struct.unpack_from("=H", reply, 16)[0]
    _set(control, _SIOCSIFFLAGS, name, struct.pack("=H", before | flags))


def _start(control: socket.socket, name: str, address: str, mask: str) -> None:
    with suppress(OSError):  # no IPv6 in this kernel: then nothing solicits routers on the link
        Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")
    _set(control, _SIOCSIFMTU, name, struct.pack("=i", MTU))
    set_queue_length(name, QUEUE_PACKETS)
    _set(control, _SIOCSIFADDR, name, _address(address))
    # Before it is up: an Ethernet device's address would else bring a route to all of 100.0.0.0/8.
    _set(control, _SIOCSIFNETMASK, name, _address(mask))
    set_flags(control, name)


def _add_route(control: socket.socket, name: str, network: str, mask: str) -> None:
    entry = _Route(
        destination=_SocketAddress(*_address(network)),
        gateway=_SocketAddress(*_address("0.0.0.0")),
        mask=_SocketAddress(*_address(mask)),
        flags=_RTF_UP,
        device=name.encode(),
    )
    fcntl.ioctl(control, _SIOCADDRT, bytes(entry))
