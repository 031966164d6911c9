"""All time limits of waits between processes, machines and servers.

A slow network or a crowded machine may need longer ones: ``DISTRLCC_LIMITS="silence=15,start=99"``.
Child processes inherit the variable. Display periods and protocol constants stay where they are
used. docs/limits.md says what each limit is for.
"""

import os
import socket
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from threading import Thread
from time import monotonic, sleep
from typing import Any, TypeVar

from distrlcc.errors import ConfigError, listed, unknown_name

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """Limits of waits, s."""

    tick: float = 0.1  # period at which a process that waits looks again
    heartbeat: float = 0.5  # period at which a process says that it lives
    silence: float = 5.0  # a rank without a heartbeat for this long has left
    worker_silence: float = 8.0  # a worker or actor that has not answered for this long has left
    stall: float = 20.0  # a process that lives but gets nothing done for this long is given up
    absence: float = 45.0  # a process that cannot reach its coordinator for this long gives up
    call: float = 5.0  # one request to another process, machine or server takes at most this long
    join: float = 30.0  # a newcomer is admitted or refused within this
    start: float = 60.0  # a process, an environment or a cluster's head has started within this
    stop: float = 30.0  # a process that was asked to stop may save its work for this long
    kill: float = 2.0  # the same where there is nothing to save; how long a last message may take
    retry: float = 1.0  # pause before a failed attempt is repeated; it may double each time
    patience: float = 600.0  # wait for a process that lives but is late, as a rank that scores


def limits() -> Limits:
    """Return this process's limits; raises ConfigError if ``DISTRLCC_LIMITS`` does not fit."""
    return _read(os.environ.get("DISTRLCC_LIMITS", ""))


@lru_cache
def _read(text: str) -> Limits:
    names = [field.name for field in fields(Limits)]
    chosen: dict[str, float] = {}
    for part in listed(text, "DISTRLCC_LIMITS"):
        name, _, value = part.partition("=")
        if name in chosen:
            raise ConfigError(f"DISTRLCC_LIMITS: {name} is there twice; leave one out")
        if name not in names:
            raise unknown_name("limit in DISTRLCC_LIMITS", name, names)
        try:
            chosen[name] = float(value)
        except ValueError:
            chosen[name] = -1.0
        if not 0.0 < chosen[name] < float("inf"):
            raise ConfigError(f"DISTRLCC_LIMITS: {part}: expected {name}=SECONDS, above 0")
    return replace(Limits(), **chosen)


def wait_until(done: Callable[[], object], seconds: float) -> bool:
    """Ask at every tick until something is done, for some s at most; say whether it is."""
    deadline = monotonic() + seconds
    while not (over := done()) and monotonic() < deadline:
        sleep(limits().tick)
    return bool(over)


def begin(call: Callable[[], T]) -> Future[T]:
    """Call in a thread of its own, which may be left behind; return the future of its result."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future


def look_up(host: str, port: int | None, seconds: float, **more: int) -> list[Any]:
    """Return what ``socket.getaddrinfo`` finds in time, s; the resolver may take longer."""
    try:
        return begin(lambda: socket.getaddrinfo(host, port, **more)).result(seconds)
    except TimeoutError:
        raise TimeoutError(f"no server of names has answered for {seconds:g} s") from None
