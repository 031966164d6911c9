"""Network namespaces: as root, or without root in a user namespace."""

import ctypes
import errno
import fcntl
import math
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from distrlcc.errors import LinkError
from distrlcc.limits import begin, limits, wait_until
from distrlcc.processes import call_libc

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_CAP_NET_ADMIN, _CAP_SYS_ADMIN = 12, 21
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAPABILITY_VERSION_3 = 47, 2, 0x20080522
_NS_GET_USERNS = 0xB701
NETWORK = "DISTRLCC_NETWORK"
"""A variable that names the network of `own_loopback`, for the processes that have one."""
T = TypeVar("T")
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
    try:
        _unshare_user(0, 0, _CLONE_NEWNET)
        enable_loopback()
    except OSError as error:
        threads = error.errno == errno.EINVAL and len(os.listdir("/proc/self/task")) > 1
        remedy = "it has several threads: set OPENBLAS_NUM_THREADS=1" if threads else REMEDY
        raise LinkError(f"no user namespace can be made ({error.strerror}); {remedy}") from None


def _unshare_user(user: int, group: int, more: int = 0) -> None:
    """Enter a new user namespace, in which this process's user and group have these numbers."""
    users, groups = f"{user} {os.geteuid()} 1", f"{group} {os.getegid()} 1"
    call_libc("unshare", _CLONE_NEWUSER | more)
    own = Path("/proc/self")
    with suppress(FileNotFoundError):
        (own / "setgroups").write_text("deny")
    (own / "uid_map").write_text(users)
    (own / "gid_map").write_text(groups)


def own_loopback() -> str:
    """Make a loopback that other users do not reach; return why there is none, or nothing.

    `on_loopback` finds it, in this process and in all that it starts from now on. They stay in the
    network where they are. Without privileges they are in a user namespace as well, under their
    own numbers, which this process can enter only as long as it has one thread.
    """
    if NETWORK in os.environ:
        return ""
    wait_until(lambda: len(os.listdir("/proc/self/task")) == 1, limits().kill)
    # Try it first in a process that may fail half-way.
    child = os.fork()
    if child == 0:
        code = errno.EPERM
        try:
            signal.alarm(math.ceil(limits().call))
            _make_loopback()
            code = 0
        except OSError as error:
            code = error.errno or code
        finally:  # whatever happens, this process is not the command
            os._exit(code)
    if number := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        return os.strerror(number) if number > 0 else f"it took over {limits().call:g} s"
    os.environ[NETWORK] = f"/proc/{os.getpid()}/fd/{_make_loopback()}"
    return ""


def _make_loopback() -> int:
    """Return a descriptor of a new network whose loopback is up, which this process may enter."""
    privileged = is_privileged()
    if not privileged:
        _unshare_user(os.geteuid(), os.getegid())

    def make() -> int:  # in a thread, as none but root may return from there
        call_libc("unshare", _CLONE_NEWNET)
        enable_loopback()
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    with ThreadPoolExecutor(1) as pool:
        network = pool.submit(make).result()
    if not privileged:
        # Keep the one right that entering asks for, also for programs that are started.
        right = 1 << _CAP_SYS_ADMIN
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
        call_libc("capset", bytes(header), bytes((ctypes.c_uint32 * 6)(right, right, right)))
        call_libc("prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_SYS_ADMIN, 0, 0)
    return network


def on_loopback(call: Callable[..., T], *args: Any, **more: Any) -> T:
    """Call where the loopback of `own_loopback` is, if there is one: what it opens stays there."""
    place = os.environ.get(NETWORK)
    if place is None:
        return call(*args, **more)

    def there() -> T:  # a thread of its own, as none but root may return
        try:
            network = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # as torch where nobody answers
            raise RuntimeError("the command that held this run's loopback has ended") from None
        try:
            call_libc("setns", network, _CLONE_NEWNET)
        finally:
            os.close(network)
        return call(*args, **more)

    return begin(there).result()


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
