"""Network namespaces: as root, or without root in a user namespace."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from distrlcc.errors import LinkError
from distrlcc.net.device import enable_loopback
from distrlcc.net.kernel_calls import CLONE_NEWNET, CLONE_NEWUSER, set_namespace, unshare

_CAP_NET_ADMIN, _CAP_SYS_ADMIN = 12, 21
_NS_GET_USERNS = 0xB701
REMEDY = (
    "run as root, or allow user namespaces: sysctl -w kernel.unprivileged_userns_clone=1 (Debian), "
    "kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), user.max_user_namespaces=10000; "
    "in a container --cap-add NET_ADMIN --cap-add SYS_ADMIN --device /dev/net/tun"
)


def is_privileged() -> bool:
    """Return whether this process may make namespaces and devices where it is."""
    status = Path("/proc/self/status").read_text()
    capabilities = int(status.partition("CapEff:")[2].split()[0], 16)
    if not all(capabilities >> bit & 1 for bit in (_CAP_NET_ADMIN, _CAP_SYS_ADMIN)):
        return False
    network = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.close(fcntl.ioctl(network, _NS_GET_USERNS))
    except PermissionError:  # root of a user namespace, in the network of another
        return False
    finally:
        os.close(network)
    return True


def enter_user_namespace() -> None:
    """Become root of a user namespace with a network of its own, in which loopback is up.

    Raises:
        LinkError: The system does not allow it.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        unshare(CLONE_NEWUSER | CLONE_NEWNET)
        own = Path("/proc/self")
        with suppress(FileNotFoundError):
            (own / "setgroups").write_text("deny")
        (own / "uid_map").write_text(f"0 {user} 1")
        (own / "gid_map").write_text(f"0 {group} 1")
        enable_loopback()
    except OSError as error:
        raise LinkError(f"no user namespace can be made ({error.strerror}); {REMEDY}") from None


@contextmanager
def new_network() -> Iterator[int]:
    """Be in a new, empty network; go back to the former one, whose descriptor this gives.

    Raises:
        LinkError: The system does not allow it.
    """
    before = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            unshare(CLONE_NEWNET)
        except OSError as error:
            raise LinkError(
                f"no network namespace can be made ({error.strerror}); {REMEDY}"
            ) from None
        try:
            yield before
        finally:
            set_namespace(before)
    finally:
        os.close(before)


@contextmanager
def inside(network: int) -> Iterator[None]:
    """Be in a network for a while."""
    before = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        set_namespace(network)
        try:
            yield
        finally:
            set_namespace(before)
    finally:
        os.close(before)
