"""Addresses of a server of pages, and the names by which a browser may ask for it.

A page elsewhere may let its own name lead here (DNS rebinding): a request by another name than this
server's gets nothing.
"""

import ipaddress
import os
import socket
from contextlib import suppress
from urllib.parse import urlsplit

from distrlcc.errors import ConfigError


def listening(host: str, port: int, flag: str) -> socket.socket:
    """Return a socket that listens; raises ConfigError in one line where it cannot."""
    six = ":" in host
    family, both = socket.AF_INET6 if six else socket.AF_INET, six and socket.has_dualstack_ipv6()
    try:
        return socket.create_server((host, port), family=family, backlog=64, dualstack_ipv6=both)
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", 0) or 0  # the resolver's are below 0
        why = os.strerror(number) if number > 0 else "no such address"
        raise ConfigError(
            f"cannot listen on {in_url(host, port)}: {why}; take another port (0 finds a free "
            f"one), or another address with {flag}"
        ) from None


def in_url(host: str, port: int) -> str:
    """Return an address as it stands in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_own(host: str) -> bool:
    """Say whether only this machine reaches an address."""
    found = _address(host)
    return host == "localhost" if found is None else found.is_loopback


def asked_for(given: str, host: str, port: int) -> bool:
    """Say whether a request's ``Host`` is a server that listens at an address.

    If it listens at all addresses of a machine, any address counts: only names can be led astray.
    """
    bound = _address(host)
    for_all = bound is not None and bound.is_unspecified
    names = {host} | ({socket.gethostname(), socket.getfqdn()} if for_all else set())
    if for_all or is_own(host):
        names |= {"localhost", "127.0.0.1", "::1"}
    with suppress(ValueError):  # of a port
        asked = urlsplit(f"//{given}")
        name = asked.hostname or ""
        known = name in {each.lower() for each in names} or (for_all and _address(name) is not None)
        return known and (asked.port or 80) == port and "@" not in given
    return False


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with suppress(ValueError):
        return ipaddress.ip_address(host)
    return None
