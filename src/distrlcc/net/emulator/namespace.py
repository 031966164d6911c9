"""Network namespaces: as root, or without root in a user namespace."""

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from distrlcc.errors import LinkError
from distrlcc.processes import call_libc

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_CAP_NET_ADMIN, _CAP_SYS_ADMIN = 12, 21
_NS_GET_USERNS = 0xB701
REMEDY = (
    "run as root, or allow user namespaces: sysctl -w kernel.unprivileged_userns_clone=1 (Debian), "
    "kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), user.max_user_namespaces=10000; "
    "in a container --cap-add NET_ADMIN --cap-add SYS_ADMIN --device /dev/net/tun"
)


def capabilities() -> int:
    """Return this process's effective capabilities, a bit each."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("CapEff:")[2].split()[0], 16)


def is_privileged() -> bool:
    """Return whether this process may make namespaces and devices where it is."""
    held = capabilities()
    if not all(held >> bit & 1 for bit in (_CAP_NET_ADMIN, _CAP_SYS_ADMIN)):
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
    """Become root of a user namespace whose own network has loopback; raises LinkError."""
    user, group = os.geteuid(), os.getegid()
    try:
        call_libc("unshare", _CLONE_NEWUSER | _CLONE_NEWNET)
        own = Path("/proc/self")
        with suppress(FileNotFoundError):
            (own / "setgroups").write_text("deny")
        (own / "uid_map").write_text(f"0 {user} 1")
        (own / "gid_map").write_text(f"0 {group} 1")
        enable_loopback()
    except OSError as error:
        threads = error.errno == errno.EINVAL and len(os.listdir("/proc/self/task")) > 1
        remedy = "it has several threads: set OPENBLAS_NUM_THREADS=1" if threads else REMEDY
        raise LinkError(f"no user namespace can be made ({error.strerror}); {remedy}") from None


def enable_loopback() -> None:
    """Bring this network's loopback up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP))


@contextmanager
def new_network() -> Iterator[int]:
    """Enter a new, empty network; yield the former one, to return to; raises LinkError."""
    with _staying() as before:
        try:
            call_libc("unshare", _CLONE_NEWNET)
        except OSError as error:
            raise LinkError(
                f"no network namespace can be made ({error.strerror}); {REMEDY}"
            ) from None
        yield before


@contextmanager
def inside(network: int) -> Iterator[None]:
    """Enter a network, and return to the former one."""
    with _staying():
        call_libc("setns", network, _CLONE_NEWNET)
        yield


@contextmanager
def _staying() -> Iterator[int]:
    """Yield a descriptor of this thread's network, and return to it."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield before
    finally:
        call_libc("setns", before, _CLONE_NEWNET)
        os.close(before)
