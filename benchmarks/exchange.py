"""What one exchange costs: measured between hosts, and a model of it for more of them.

gloo adds flat vectors around a ring of n: 2 (n - 1) messages one after the other, each of 1/n of
the vector. So the model is ``2 (n - 1) (latency + bytes / n / bandwidth)``.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from distrlcc.errors import GroupError
from distrlcc.limits import limits
from distrlcc.parallel.process_group import ProcessGroup
from distrlcc.parallel.rank_spec import RankSpec
from distrlcc.parallel.start import behind_tunnel
from distrlcc.parallel.store import Master
from distrlcc.processes import die_with_parent
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
        return 2 * (ranks - 1) * (self.latency + 4 * size / ranks / self.bandwidth)


def measure_exchange(
    hosts: Sequence[int] = (2, 4), links: Sequence[float] = LINKS
) -> list[ExchangeModel]:
    """Measure between hosts made of namespaces, on every link, and fit."""
    models = []
    for mbit in links:
        points = [
            (count, size, seconds)
            for count in hosts
            for size, seconds in _measure(count, mbit).items()
        ]
        models.append(fit(mbit, points))
    return models


def fit(mbit: float, points: Sequence[tuple[int, int, float]]) -> ExchangeModel:
    """Fit latency and bandwidth to (ranks, values, seconds), minimising relative errors."""
    rows = np.array([[2 * (n - 1), 2 * (n - 1) * 4 * size / n] for n, size, _ in points])
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
    assert config.ppo is not None
    samples = config.num_envs * config.ppo.rollout_length
    minibatches = config.ppo.num_epochs * -(-samples // config.ppo.minibatch_size)
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


def _measure(count: int, mbit: float) -> dict[int, float]:
    """Return the median time of an exchange by size, s."""
    with Hosts(count) as hosts:
        hosts.shape(mbit)
        program, master = (sys.executable, "-m", "benchmarks.exchange"), hosts.address(0)
        commands = [
            hosts.command(slot, *program, master, str(slot), str(count)) for slot in range(count)
        ]
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for command in commands]
        try:
            output, _ = processes[0].communicate(timeout=2 * limits().start)
            for process in processes:
                process.wait(limits().stop)
        except subprocess.TimeoutExpired:
            raise GroupError(f"measuring between {count} hosts did not end") from None
        finally:
            for process in processes:
                process.kill()
                process.wait()
                if process.stdout:
                    process.stdout.close()
    if not output:
        raise GroupError(f"measuring between {count} hosts failed")
    return {int(size): seconds for size, seconds in json.loads(output).items()}


def _rank(address: str, slot: int, size: int) -> None:
    """Exchange as one host; host 0 prints the medians."""
    import torch

    die_with_parent(signal.SIGKILL)
    torch.set_num_threads(1)
    master = Master(address, 29512, token=_TOKEN) if slot == 0 else None
    place = RankSpec(address, 29512, slot, size, timeout_seconds=limits().start)
    medians = {}
    with (
        behind_tunnel(place, _TOKEN, master) as behind,
        ProcessGroup(behind, {"config": ""}) as group,
    ):
        group.agree(0, ready=False)
        for values in SIZES:
            vector, times = torch.zeros(values), []
            for _ in range(_REPEATS):
                begin = perf_counter()
                group.mean_gradient(vector, 1.0)
                times.append(perf_counter() - begin)
            medians[values] = float(np.median(times[5:]))
    if master is not None:
        sys.stdout.write(json.dumps(medians))
        sys.stdout.flush()
        master.close()


if __name__ == "__main__":
    _rank(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
