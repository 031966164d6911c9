"""A link's end where no TUN device may be opened: a pair of Ethernet devices and a packet socket.

One device of the pair has the address; the other stands in COMMAND's network, so that the pair ends
with that network, and a packet socket on it reads and writes what the first sends and receives.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
from contextlib import suppress

from distrlcc.net.device import control_socket, set_flags
from distrlcc.net.netlink import create_veth, delete_device

_ETH_P_IP = 0x0800
_SIOCGIFHWADDR = 0x8927
_SIOCETHTOOL = 0x8946
_SET_TRANSMIT_CHECKSUM, _SET_SEGMENTATION = 0x17, 0x24
_SO_RCVBUFFORCE, _SO_SNDBUFFORCE = 33, 32
_BUFFER_BYTES = 64 << 20
_IFF_UP, _IFF_NOARP = 0x1, 0x80


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
        create_veth(peer, name, network)
        with control_socket() as control:
            set_flags(control, peer, _IFF_UP)
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
        with control_socket() as control:
            # Else the kernel leaves checksums and segmentation to hardware that is not there.
            for command in (_SET_TRANSMIT_CHECKSUM, _SET_SEGMENTATION):
                value = (ctypes.c_uint32 * 2)(command, 0)
                request = struct.pack("=16sQ16x", name.encode(), ctypes.addressof(value))
                fcntl.ioctl(control, _SIOCETHTOOL, request)
            set_flags(control, name, _IFF_NOARP)
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
            delete_device(self._to[0])
        self._socket.close()
