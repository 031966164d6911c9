"""What Python 3.11 lacks of Linux: namespaces, prctl and signalfd, through ctypes."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from collections.abc import Iterable
from dataclasses import dataclass

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SIGNAL_BYTES = 128
_SI_KERNEL = 0x80

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def unshare(flags: int) -> None:
    """Move this thread into new namespaces.

    Raises:
        OSError: The system does not allow it.
    """
    _checked(_libc.unshare(flags))


def set_namespace(descriptor: int) -> None:
    """Move this thread into the network namespace of an open descriptor.

    Raises:
        OSError: The system does not allow it.
    """
    _checked(_libc.setns(descriptor, CLONE_NEWNET))


def die_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when the thread that started it ends."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0))


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parents end."""
    _checked(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


@dataclass(frozen=True, slots=True)
class Received:
    """A signal that a `SignalDescriptor` gave."""

    number: signal.Signals
    from_terminal: bool
    """Sent by the kernel to the whole foreground group, as by Ctrl-C."""


class SignalDescriptor:
    """Signals as a readable descriptor; they are blocked from then on, in children too."""

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        """Block signals and open their descriptor."""
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        mask = sum(1 << (number - 1) for number in numbers)
        flags = os.O_CLOEXEC | os.O_NONBLOCK
        self._descriptor = _checked(_libc.signalfd(-1, struct.pack("=QQ", mask, 0), flags))

    def fileno(self) -> int:
        """Return the descriptor, for select."""
        return self._descriptor

    def read(self) -> list[Received]:
        """Return the signals that have come."""
        received: list[Received] = []
        while True:
            try:
                data = os.read(self._descriptor, _SIGNAL_BYTES)
            except BlockingIOError:
                return received
            number, _, code = struct.unpack_from("=IiI", data)
            received.append(Received(signal.Signals(number), code == _SI_KERNEL))

    def restore_mask(self) -> None:
        """Let signals through again as before; for children, before exec."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)

    def close(self) -> None:
        """Close the descriptor, take what is left, and let signals through again."""
        self.read()
        os.close(self._descriptor)
        self.restore_mask()
