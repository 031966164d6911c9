"""Where a server of pages listens, and by which names a browser may ask for it.

A page elsewhere may have its own name lead here (DNS rebinding): what asks by a name that is not
this server's gets nothing.
"""

import ipaddress
import socket
from contextlib import suppress

from distrlcc.errors import ConfigError


def listening(host: str, port: int, flag: str) -> socket.socket:
    """Return a socket that listens; raises ConfigError in one line where it cannot."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[
            0
        ]
    except (OSError, UnicodeError):
        raise ConfigError(f"{flag} {host}: no such address; expected one of this machine") from None
    sock = socket.socket(family, kind, number)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(64)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"cannot listen on {in_url(host, port)}: {error.strerror}; take another port (0 finds "
            f"a free one), or another address with {flag}"
        ) from None
    return sock


def in_url(host: str, port: int) -> str:
    """Return an address as it stands in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_own(host: str) -> bool:
    """Say whether only this machine reaches an address."""
    found = _address(host)
    return host == "localhost" if found is None else found.is_loopback


def asked_for(given: str, host: str, port: int) -> bool:
    """Say whether a request's ``Host`` is a server that listens at an address.

    Where it listens at all of a machine's, any address is: only a name can be led astray.
    """
    bound = _address(host)
    for_all = bound is not None and bound.is_unspecified
    names = {host, *(("localhost", "127.0.0.1", "::1") if for_all or is_own(host) else ())}
    name, _, asked = given.rpartition(":") if ":" in given.rpartition("]")[2] else (given, "", "80")
    if asked != str(port):
        return False
    name = name.removeprefix("[").removesuffix("]")
    if for_all:
        names |= {socket.gethostname(), socket.getfqdn()}
    return name in names or (for_all and _address(name) is not None)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with suppress(ValueError):
        return ipaddress.ip_address(host)
    return None
