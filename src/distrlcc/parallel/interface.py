"""Which of this machine's network interfaces reaches a peer: asked of the system, never guessed.

A host's name often resolves to a loopback address, and a VPN's interface is never the default one;
the routing table knows both. Addresses are IPv4.
"""

import fcntl
import os
import socket
import struct
from array import array
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from distrlcc.errors import ConfigError, NoGroupError, reading
from distrlcc.limits import limits, look_up

LOOPBACK = "127.0.0.1"
_THIS_NETWORK, _BROADCAST = IPv4Network("0.0.0.0/8"), IPv4Address("255.255.255.255")
_NET = Path("/sys/class/net")
_SIOCGIFCONF = 0x8912  # linux/sockios.h
_IFCONF, _ENTRY = struct.Struct("@iP"), struct.Struct("16s4x4s16x")
"""The latter is struct ifreq, of an IPv4 address, where pointers have 64 bits."""
_NO_HARDWARE_ADDRESS = "65534"  # ARPHRD_NONE: TUN devices and WireGuard


@dataclass(frozen=True)
class Interface:
    """A network interface and its address."""

    name: str
    address: str

    def __str__(self) -> str:
        return f"{self.name} ({self.address})"


def interfaces() -> list[Interface]:
    """Return this machine's IPv4 addresses, each with its interface, which may have several."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        # Without room the kernel tells the size (struct ifconf).
        size = _IFCONF.unpack(fcntl.ioctl(control, _SIOCGIFCONF, _IFCONF.pack(0, 0)))[0]
        room = array("B", bytes(size + 64 * _ENTRY.size))  # some may come meanwhile
        request = _IFCONF.pack(len(room), room.buffer_info()[0])
        size = _IFCONF.unpack(fcntl.ioctl(control, _SIOCGIFCONF, request))[0]
    return [
        # A label as in eth0:x is none of the interface's name.
        Interface(name.partition(b"\0")[0].decode().partition(":")[0], socket.inet_ntoa(address))
        for name, address in _ENTRY.iter_unpack(room[:size])
    ]


def resolve(host: str) -> str:
    """Return a host's IPv4 address; ConfigError: none, or one of several machines (0.0.0.0)."""
    remedy = "; give an address such as 10.0.0.1"
    with reading(ConfigError, f"{host!r} has no IPv4 address", remedy):
        found = str(look_up(host, None, limits().call, family=socket.AF_INET)[0][4][0])
    address = IPv4Address(found)
    if address in _THIS_NETWORK or address.is_multicast or address == _BROADCAST:
        raise ConfigError(
            f"{host} is not the address of one machine: expected the one at which others reach it, "
            "such as 10.0.0.1"
        )
    return found


def check_place(address: str = LOOPBACK, port: int = 0) -> None:
    """See that a run's processes can listen at their places, before anything is prepared.

    ConfigError: no loopback interface; GroupError: not this machine's address, or a taken port.
    """
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            socket.create_connection(server.getsockname(), limits().call).close()
    except OSError as error:
        raise ConfigError(
            f"this machine has no loopback interface ({error.strerror}), over which its own "
            "processes speak; bring it up with: ip link set lo up"
        ) from None
    listen(resolve(address), port).close()


def listen(address: str, port: int) -> socket.socket:
    """Return a socket that listens; raises GroupError if it cannot listen there."""
    try:
        return socket.create_server((address, port), backlog=512)
    except OSError as error:
        raise NoGroupError(
            f"cannot listen on {address}:{port} ({os.strerror(error.errno or 0)}); --ip must "
            "be an address of node 0 and --port must be free there"
        ) from None


def interface_towards(host: str, name: str = "") -> Interface:
    """Return the interface, the named or the system's, that reaches a host; ConfigError: none."""
    found = interfaces()
    names = ", ".join(map(str, found)) or "none"
    # The user's choice?
    if name:
        for interface in found:
            if interface.name == name:
                return interface
        raise ConfigError(
            f"--interface {name}: expected one that is up and has an IPv4 address ({names})"
        )
    # Else ask the system for the address from which a datagram would leave.
    address = resolve(host)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # sends nothing
            own = str(probe.getsockname()[0])
        except OSError as error:
            raise ConfigError(
                f"no route to {host} ({error.strerror}); this machine's interfaces: {names}"
            ) from None
    # Which interface has that address?
    for interface in found:
        if interface.address == own:
            return interface
    if is_loopback(own):
        return Interface("lo", own)
    raise ConfigError(
        f"the route to {host} leaves from {own}, which is on none of this machine's interfaces "
        f"({names}); give --interface NAME"
    )


def is_loopback(address: str) -> bool:
    """Say whether only this machine reaches an IPv4 address."""
    return address.startswith("127.")


def is_ours(connection: socket.socket) -> bool:
    """Say whether the process at the other end of a Unix socket belongs to this user."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", found)[1] == os.geteuid())


def tunnel_towards(host: str) -> Interface:
    """Return the tunnel on the route to a host, or the only one; raises ConfigError."""
    tunnels = [interface for interface in interfaces() if is_tunnel(interface.name)]
    routed = interface_towards(host)
    if routed in tunnels or len({tunnel.name for tunnel in tunnels}) == 1:
        return routed if routed in tunnels else tunnels[0]
    names = ", ".join(map(str, tunnels)) or "none"
    raise ConfigError(
        f"--tun: expected one tunnel interface, found {names}; start the VPN, or give --interface "
        "NAME"
    )


def is_tunnel(name: str) -> bool:
    """Say whether an interface is a tunnel's: TUN, TAP or WireGuard."""
    try:
        kind = (_NET / name / "type").read_text().strip()
    except OSError:
        return False
    return kind == _NO_HARDWARE_ADDRESS or (_NET / name / "tun_flags").exists()


def check_private(interface: Interface, *, named: bool) -> None:
    """See that NCCL, which no tunnel carries, is on a trusted interface; else ConfigError."""
    if not (named or is_loopback(interface.address) or is_tunnel(interface.name)):
        raise ConfigError(
            f"NCCL would speak over {interface} without encryption or any check of who is there: "
            "use a VPN, or name an interface of a network that you trust with --interface"
        )
