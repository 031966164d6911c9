"""The addresses of a Ray cluster: the head's, as given and as it is found on the head."""

from __future__ import annotations

import ipaddress

from distrlcc.cluster.ray_ports import DEFAULT_PORT
from distrlcc.errors import ConfigError
from distrlcc.parallel.interface import Interface, interface_towards, interfaces, resolve


def head_interface(ip: str, name: str) -> Interface:
    """Return the interface that a head listens on; it is never guessed.

    Raises:
        ConfigError: There is none like this, or several to choose from.
    """
    found = interfaces()
    names = ", ".join(map(str, found)) or "none"
    if ip:
        address = resolve(ip)
        for interface in found:
            if interface.address == address and name in ("", interface.name):
                return interface
        on = f" on {name}" if name else ""
        raise ConfigError(f"--ip {ip}: expected an address of this machine{on} ({names})")
    if name:
        return interface_towards("127.0.0.1", name)
    outward = [interface for interface in found if not interface.address.startswith("127.")]
    if len(outward) == 1:
        return outward[0]
    if not outward:
        raise ConfigError("this machine has no network interface that others reach; is it up?")
    raise ConfigError(
        f"the other machines could reach this one at {', '.join(map(str, outward))}; say which "
        "with --ip or --interface"
    )


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST`` or ``HOST:PORT``.

    Raises:
        ConfigError: It is neither.
    """
    host, colon, port = text.rpartition(":")
    host, port = (host, port) if colon else (text, str(DEFAULT_PORT))
    if not host or ":" in host or not port.isdecimal() or not 0 < int(port) < 65526:
        raise ConfigError(f"{text!r}: expected HOST:PORT of the head, as 10.0.0.1:{DEFAULT_PORT}")
    return host, int(port)


def check_private(address: str, *, allow_public: bool) -> None:
    """See that an address is not a public one, or that it may be.

    Raises:
        ConfigError: It is.
    """
    if ipaddress.ip_address(address).is_global and not allow_public:
        raise ConfigError(
            f"{address} is a public address, and what Ray sends is not encrypted: use a private "
            "network or a VPN, or give --allow-public"
        )
