"""Preloaded by a `Launcher`'s fork server alone, which a signal to all processes must not end.

A signal to a whole group of processes, as `timeout`, systemd and schedulers send it, reaches the
fork server too, and the ranks die with it. It holds such signals back; a rank takes them again.
"""

from __future__ import annotations

import signal

GROUP_SIGNALS = {signal.SIGTERM, signal.SIGHUP}

signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)


def take_signals() -> None:
    """Let the signals through again, in a process that was forked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)
