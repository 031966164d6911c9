"""What one exchange costs between hosts made of namespaces, and a model of it for more of them.

Ranks send messages one after the other, and the gradient of a small network is bound by their
number: log2 n where n is a power of two. A message's cost is CPU time of both its ends and of their
tunnels, its way through the link, and its bytes; the first two are the model's ``latency``.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from distrlcc.errors import GroupError
from distrlcc.limits import limits
from distrlcc.parallel.process_group import ProcessGroup
from distrlcc.parallel.start import behind_tunnel
from distrlcc.parallel.store import Master
from distrlcc.processes import descendants, die_with_parent
from distrlcc.runs.options import RankSpec
from distrlcc.runs.run_config import RunConfig
from tests.support.namespaces import Hosts

SIZES = (64, 6_000, 60_000, 600_000)
"""float32 values in a vector; a small policy has some 6,000 weights."""
LINKS = (0.0, 1000.0, 100.0)
"""Mbit/s that each host sends; 0 is unshaped."""
_PROJECTED = tuple(2**k for k in range(1, 11))
_SMALL_EXCHANGES = 3
"""Sums of statistics in an update, besides the gradients'."""
_REPEATS = 40
_TOKEN = "of-hosts-without-strangers"
_NEW_NETWORK = 0x40000000
_PATIENCE = 1800.0
_PATIENT = "call=120,silence=240,absence=600,join=300,start=300,heartbeat=60"
"""Limits where many processes share few cores; heartbeats would count as exchanges' CPU time."""

_leaving: list[Any] = []
"""Where the hosts wait for each other in the end."""


def messages(ranks: int) -> int:
    """Return how many messages an exchange takes, one after the other."""
    levels = ranks.bit_length() - 1
    return levels + 2 * (ranks & (ranks - 1) > 0)


@dataclass(frozen=True)
class ExchangeModel:
    """A fitted model of one exchange."""

    mbit: float
    """Of the shaped link; 0 for an unshaped one."""
    latency: float
    """Of one message, s."""
    bandwidth: float
    """Bytes/s; infinite if it was not felt."""
    error: float
    """Greatest relative error of the model at the points measured."""

    def seconds(self, ranks: int, size: int) -> float:
        """Return the time of one exchange of ``size`` float32 values between ``ranks``."""
        count, whole = messages(ranks), 4 * size / self.bandwidth
        # Whole vectors are doubled, or where that takes less time halved.
        halved = 2 * count * self.latency + 2 * whole
        return min(count * (self.latency + whole), halved)


def measure_exchange(
    hosts: Sequence[int] = (2, 4), links: Sequence[float] = LINKS
) -> list[ExchangeModel]:
    """Measure between hosts made of namespaces, on every link, and fit."""
    models = []
    for mbit in links:
        points = [
            (count, size, seconds)
            for count in hosts
            for size, seconds in on_hosts(count, mbit, _exchange)[0].items()
        ]
        models.append(fit(mbit, points))
    return models


def fit(mbit: float, points: Sequence[tuple[int, int, float]]) -> ExchangeModel:
    """Fit latency and bandwidth to (ranks, values, seconds), minimising relative errors."""
    rows = np.array([[messages(n), messages(n) * 4 * size] for n, size, _ in points])
    seconds = np.array([s for *_, s in points])
    scaled = rows / seconds[:, None]
    solution, *_ = np.linalg.lstsq(scaled, np.ones(len(points)), rcond=None)
    latency, per_byte = np.maximum(solution, (1e-6, 1e-12)).tolist()
    error = float(np.abs(rows @ np.array([latency, per_byte]) / seconds - 1.0).max())
    return ExchangeModel(mbit, latency, 1.0 / per_byte, error)


def project(
    one: float, config: RunConfig, weights: int, model: ExchangeModel, shown: Callable[[str], None]
) -> dict[str, Any]:
    """Project throughput (env-steps/s) and efficiency for more processes than were measured.

    One process alone with this configuration, whose gradient has so many float32 values, makes
    ``one`` env-steps/s.
    """
    # What one process does between two exchanges, and how many there are in an update.
    samples, minibatches = work(config)
    name = f"{model.mbit:g} Mbit/s" if model.mbit else "unshaped"
    shown(
        f"PROJECTION, {name} between hosts (one message {model.latency * 1e6:.0f} µs and "
        f"{model.bandwidth * 8e-6:,.0f} Mbit/s, model within {model.error:.0%}; quorums and "
        "waiting for the slowest are left out):"
    )
    # The same for more processes: the work of each stays, the exchanges grow.
    speeds, efficiencies = list[float](), list[float]()
    for ranks in _PROJECTED:
        exchange = minibatches * model.seconds(ranks, weights)
        exchange += _SMALL_EXCHANGES * model.seconds(ranks, 64)
        efficiencies.append(samples / one / (samples / one + exchange))
        speeds.append(ranks * one * efficiencies[-1])
        shown(f"  {ranks:>5} processes {speeds[-1]:>13,.0f} env-steps/s, {efficiencies[-1]:.2f}")
    return {
        "mbit": model.mbit,
        "latency_us": model.latency * 1e6,
        "bandwidth_mbit": model.bandwidth * 8e-6,
        "model_error": model.error,
        "processes": list(_PROJECTED),
        "env_steps_per_second": speeds,
        "efficiency": efficiencies,
    }


def work(config: RunConfig) -> tuple[int, int]:
    """Return an update's samples and minibatches of one process."""
    assert config.ppo is not None
    samples = config.num_envs * config.ppo.rollout_length
    return samples, config.ppo.num_epochs * -(-samples // config.ppo.minibatch_size)


def on_hosts(count: int, mbit: float, function: Callable[..., Any], *words: Any) -> list[Any]:
    """Call ``function(address of host 0, slot, count, *words)`` on so many hosts; return all's.

    They are forks of this process, so that what it has imported and compiled costs nothing.

    Raises:
        GroupError: One did not return in time.
    """
    forks = multiprocessing.get_context("fork")
    with Hosts(count) as hosts:
        hosts.shape(mbit)
        pipes, processes, found = [], [], dict[Any, Any]()
        _leaving[:] = [forks.Barrier(count)]
        for slot in range(count):
            ours, theirs = forks.Pipe(duplex=False)
            given = (theirs, hosts.names[slot], function, hosts.address(0), slot, count, *words)
            processes.append(forks.Process(target=_on_host, args=given))
            processes[-1].start()
            theirs.close()
            pipes.append(ours)
        try:
            while len(found) < count:
                ready = wait([pipe for pipe in pipes if pipe not in found], _PATIENCE)
                if not ready:
                    raise GroupError(f"measuring between {count} hosts did not end")
                found |= {pipe: pipe.recv() for pipe in pipes if pipe in ready}
            return [found[pipe] for pipe in pipes]
        except EOFError:
            raise GroupError(f"measuring between {count} hosts failed") from None
        finally:
            for process in processes:
                if len(found) == count:
                    process.join(limits().stop)
                process.kill()
                process.join()


def _on_host(pipe: Any, name: str, function: Callable[..., Any], *words: Any) -> None:
    """Enter a host and send what the function returns."""
    die_with_parent(signal.SIGKILL)
    os.environ.setdefault("DISTRLCC_LIMITS", _PATIENT)
    namespace = os.open(f"/run/netns/{name}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _NEW_NETWORK):
        raise OSError(ctypes.get_errno(), f"cannot enter the host {name}")
    torch.set_num_threads(1)
    pipe.send(function(*words))


@contextmanager
def group_on_host(address: str, slot: int, size: int) -> Iterator[ProcessGroup]:
    """Join the group of all hosts' processes, behind a tunnel."""
    master = Master(address, 29512, token=_TOKEN) if slot == 0 else None
    place = RankSpec(
        *(address, 29512, slot, size),
        timeout_seconds=_PATIENCE,
        join_seconds=_PATIENCE,
        elastic=False,
    )
    with (
        behind_tunnel(place, _TOKEN, master) as behind,
        ProcessGroup(behind, {"config": ""}) as group,
    ):
        group.agree(0, ready=False)
        yield group
        _leaving[0].wait(_PATIENCE)  # before all are done, messages are on their way
    if master is not None:
        master.close()


def tunnels_cpu() -> Callable[[], float]:
    """Return what reads the CPU time of this process's tunnel, s."""
    files = [Path(f"/proc/{child.pid}/schedstat") for child in descendants(os.getpid())]
    return lambda: sum(int(file.read_text().split()[0]) for file in files) * 1e-9


def _exchange(address: str, slot: int, size: int) -> dict[int, float]:
    """Exchange as one host; return the median times by size, s."""
    medians = {}
    with group_on_host(address, slot, size) as group:
        for values in SIZES:
            vector, times = torch.zeros(values), []
            for _ in range(_REPEATS):
                begin = perf_counter()
                group.mean_gradient(vector, 1.0)
                times.append(perf_counter() - begin)
            medians[values] = float(np.median(times[5:]))
    return medians
