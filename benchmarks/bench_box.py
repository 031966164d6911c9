"""A cluster in a box: what training on many machines would take, measured on few cores.

python -m benchmarks box --processes 2,4,8,16 --check 32
python -m benchmarks box one --processes 2,4 --check 0 --mbit 100 --delay-ms 10

Each process is a host of its own, with a tunnel, behind a link of --mbit. No more of them compute
at once than there are cores, and pairs exchange one after the other: so the CPU time that is
counted is what a core of its own would take, without what crowding costs. A message and a byte cost
what fits best at the counts of --processes. An update takes the slowest process's CPU time, and for
each message of an exchange that cost, --delay-ms and the bytes' time in the link. The error is
shown at a count that was not fitted, and of real time at two processes on two cores.

It says nothing of quorums among many, of processes that fail, of a network that others use, or of
caches and memory that cores share. --delay-ms is added and not measured. Needs root.

Flags:
    recipe? RECIPE =quickstart
    --processes N,… {2..64} =2,4,8,16  counts to measure and to fit
    --check N {0..64} =32  a count that is measured and not fitted; 0: none
    --mbit RATE {1.0..100000} =1000.0  link of each host, Mbit/s
    --delay-ms MS {0.0..1000} =0.1  one way between hosts, added to each message
    --updates U {2..1000} =5  updates of each process, the first of which is not counted
    --rounds R {1..1000} =6  turns of the exchange beside gloo's ring
    $JSON
    --figure FILE  write a figure there (PNG)
    --set/assignments* KEY=VALUE  change a key of the recipe
"""

from __future__ import annotations

import multiprocessing
import os
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
import torch.distributed as dist  # noqa: TID251  (for gloo's own ring)
from matplotlib.figure import Figure

from benchmarks.exchange import group_on_host, messages, on_hosts, tunnels_cpu, work
from distrlcc.cli.output import emit_json, note
from distrlcc.config import override
from distrlcc.errors import ConfigError, GroupError
from distrlcc.evaluation.figures import encode
from distrlcc.parallel.all_reduce import AllReduce
from distrlcc.parallel.process_group import ProcessGroup
from distrlcc.recipes.registry import recipe
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_state import env_run, rehearse
from distrlcc.runs.source import Share

_SIZES = 64, 6_000, 37_000
"""float32 values of a vector: statistics, a small network's gradient, a greater one's."""
_BLOCK = 4
"""Exchanges in a turn."""
_SUMS = 2
"""Of statistics in an update."""
_PROJECTED = 64, 128, 1024


def run(args: Namespace) -> int:
    """Measure, fit, and print."""
    config = override(recipe(args.recipe), args.assignments)
    if config.ppo is None:
        raise ConfigError("this benchmark measures PPO")
    if args.check in {1, *args.processes}:
        raise ConfigError(
            f"--check {args.check}: expected 0, or a count from 2 on that is not in --processes"
        )
    whole = replace(config.distributed, batch="per-process", straggler_share=0.0)
    config = replace(config, distributed=whole)
    rehearse(config)  # compiled here, once for all
    # Measure; the hosts of one count all work at once.
    counts = sorted({*args.processes, *([args.check] if args.check else [])})
    found = dict[int, list[Any]]()
    for count in counts:
        note(f"measuring {count} hosts ...")
        ring = count != args.check
        words = config, args.updates, args.rounds, ring, _Turns(count)
        try:
            found[count] = on_hosts(count, args.mbit, _host, *words)
        except GroupError as error:
            if not found.keys() - {args.check}:
                raise
            note(f"{error}: left out")  # what was measured stays
            continue
        if ring:
            _show_turns(count, found[count])
    # Fit what a message and a byte cost, and project.
    fitted = {count: hosts for count, hosts in found.items() if count != args.check}
    weights = env_run(config, Share(0, config.env.unit)).learner.optimizer.flat.numel()
    exchanges = {weights: work(config)[1], _SIZES[0]: _SUMS}
    model = _fit(fitted, exchanges, args.delay_ms / 1e3, args.mbit)
    print(
        f"an exchange costs {model.first * 1e6:.0f} µs of CPU time, each message of it "
        f"{model.message * 1e6:.0f} µs and a kB {model.byte * 1e9:.2f} µs (fitted at "
        f"{', '.join(map(str, fitted))}, within {model.error:.0%})"
    )
    # What differs between hosts in one update makes the slowest of many slower.
    each = [np.array(_column(hosts, 1)) for hosts in fitted.values()]
    one = float(np.median(np.concatenate([np.ravel(work) for work in each])))
    spread = float(np.sqrt(np.mean(np.concatenate([work.var(0, ddof=1) for work in each]))))
    rows = []

    def slowest_of(count: int) -> float:
        """Return the work of the slowest of so many, as if their times were a normal variable's."""
        return one + spread * NormalDist().inv_cdf(count / (count + 1))

    for count in (*found, *_PROJECTED):
        slowest = _slowest(found[count]) if count in fitted else slowest_of(count)
        exchange = sum(k * model.seconds(count, values) for values, k in exchanges.items())
        efficiency = one / (slowest + exchange)
        rows.append({"processes": count, "work": slowest, "exchange": exchange})
        rows[-1]["efficiency"] = efficiency
        print(
            f"{count:>5} processes: {slowest * 1e3:.0f} ms of the slowest's work, "
            f"{exchange * 1e3:.1f} ms of exchanges: {efficiency:.2f} of perfect, "
            f"{count * efficiency:,.1f} times one{'' if count in fitted else '  (PROJECTION)'}"
        )
    errors = dict[str, float]()
    if args.check in found:
        hosts = found[args.check]
        cost = sum(k * model.cpu(args.check, values) for values, k in exchanges.items())
        whole, predicted = _slowest(hosts) + _exchanges(hosts), slowest_of(args.check) + cost
        errors["exchanges"] = cost / _exchanges(hosts) - 1.0
        errors["update"] = predicted / whole - 1.0
        print(
            f"at {args.check}, not fitted: exchanges' CPU time {errors['exchanges']:+.0%}, an "
            f"update's {errors['update']:+.0%}"
        )
    if 2 in found:
        real = [max(times) for times in zip(*_column(found[2], 0), strict=True)]
        cost = sum(k * model.cpu(2, values) for values, k in exchanges.items())
        errors["real"] = (_slowest(found[2]) + cost) / float(np.median(real)) - 1.0
        errors["quickest"] = (_slowest(found[2]) + cost) / min(real) - 1.0
        print(
            f"at 2, real time of an update: {errors['real']:+.0%}, of the quickest "
            f"{errors['quickest']:+.0%} (both cores must be idle)"
        )
    if args.figure:
        Path(args.figure).write_bytes(_figure(rows, [*fitted], args))
    cpu = {n: {v: _cpu(hosts, v) for v in _SIZES} for n, hosts in found.items()}
    measured = {"cpu": cpu, "updates": {n: _exchanges(hosts) for n, hosts in found.items()}}
    told = {"model": asdict(model), "rows": rows, "errors": errors, "measured": measured}
    emit_json(args.json, told)
    return 0


class _Turns:
    """Keeps hosts from crowding the cores: what they have of a turn they wait for without cost."""

    def __init__(self, hosts: int) -> None:
        forks = multiprocessing.get_context("fork")
        self._count = len(os.sched_getaffinity(0))
        self._cores, self._all = forks.Semaphore(self._count), forks.Lock()
        # For each pair, named by its higher rank and its distance: what both let each other go by.
        places = [(host, level) for host in range(hosts) for level in range(hosts.bit_length())]
        self._pairs = {place: [forks.Semaphore(0) for _ in range(2)] for place in places}

    @contextmanager
    def core(self) -> Iterator[None]:
        """Have one core."""
        with self._cores:
            yield

    @contextmanager
    def pair(self, rank: int, partner: int) -> Iterator[Callable[[], None]]:
        """Have all cores with a partner; yield what waits for it."""
        level = (rank ^ partner).bit_length() - 1
        own, other = self._pairs[max(rank, partner), level][:: 1 if rank < partner else -1]

        def meet() -> None:
            other.release()
            own.acquire()

        meet()
        if rank < partner:  # the lower of both asks for the cores
            with self._all:
                for _ in range(self._count):
                    self._cores.acquire()
        meet()
        yield meet
        meet()
        if rank < partner:
            for _ in range(self._count):
                self._cores.release()


class _InTurn(AllReduce):
    """Its pairs of ranks exchange one after the other, and count their CPU time."""

    def __init__(self, plain: AllReduce, turns: _Turns, tunnel: Callable[[], float]) -> None:
        vars(self).update(vars(plain))
        self._turns, self._tunnel = turns, tunnel
        self.spent = 0.0
        """CPU time of messages so far, the tunnel's with it, s."""

    def _swap(self, given: torch.Tensor, received: torch.Tensor, partner: int) -> None:
        with self._turns.pair(self.rank, partner) as meet:
            if self.rank ^ partner > 1:  # other hosts have emptied the caches, as none would there
                super()._swap(given, torch.empty_like(received), partner)
            meet()
            before = time.process_time() + self._tunnel()
            super()._swap(given, received, partner)
            meet()
            self.spent += time.process_time() + self._tunnel() - before


def _host(
    address: str,
    slot: int,
    size: int,
    config: RunConfig,
    updates: int,
    rounds: int,
    ring: bool,
    turns: _Turns,
) -> dict[str, Any]:
    """Return what one host measured: exchanges in turns, then updates."""
    with group_on_host(address, slot, size) as group:
        tunnel = tunnels_cpu()
        ours = group._all_reduce
        assert isinstance(ours, AllReduce)
        alone, ways = _InTurn(ours, turns, tunnel), {"ours": ours, "ring": dist.all_reduce}
        found = {values: _in_turns(group, values, ways, tunnel, rounds * ring) for values in _SIZES}
        return {
            "turns": found,
            "alone": {values: _alone(alone, values, rounds) for values in _SIZES},
            "halved_from": ours.halved_from,
            "updates": _updates(group, config, updates, alone, turns),
        }


def _alone(way: _InTurn, values: int, rounds: int) -> list[float]:
    """Return the CPU time of an exchange in each round, s, no other host's in between."""
    vector, found = torch.zeros(values), []
    for _ in range(rounds * _BLOCK):
        before = way.spent
        way(vector)
        found.append(way.spent - before)
    return found


def _in_turns(
    group: ProcessGroup, values: int, ways: Any, tunnel: Callable[[], float], rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Return each way's real and CPU time of an exchange in each round, s."""
    vector, found = torch.zeros(values), {name: list[tuple[float, float]]() for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            group.sum(np.zeros(1))
            begin, cpu = time.perf_counter(), time.process_time() + tunnel()
            for _ in range(_BLOCK):
                way(vector)
            spent = time.process_time() + tunnel() - cpu
            found[name].append(((time.perf_counter() - begin) / _BLOCK, spent / _BLOCK))
    return found


def _updates(
    group: ProcessGroup, config: RunConfig, updates: int, exchange: _InTurn, turns: _Turns
) -> list[tuple[float, float, float]]:
    """Return of each update but the first: real time, CPU time of work, and of exchanges, s."""
    plain, away, cores = group._all_reduce, 0.0, ExitStack()

    def timed(vector: torch.Tensor) -> None:
        nonlocal away
        cores.close()
        begin = time.process_time()
        exchange(vector)
        away += time.process_time() - begin
        cores.enter_context(turns.core())

    group._all_reduce = timed
    rank = group.members[group.rank].slot
    state, found = env_run(config, Share.of(config, rank, group.size), group), []
    for update in range(updates):
        group.agree(update, ready=True)
        begin, cpu, away, spent = time.perf_counter(), time.process_time(), 0.0, exchange.spent
        with cores:
            cores.enter_context(turns.core())
            rollout, _ = state.source.next(state.learner.weights(), None) or (None, None)
            state.learner.update(rollout)
        here = time.process_time() - cpu - away
        found.append((time.perf_counter() - begin, here, exchange.spent - spent))
    group._all_reduce = plain
    return found[1:]


@dataclass(frozen=True)
class _Model:
    """What an exchange costs."""

    first: float
    """CPU time that an exchange takes beside its messages, as work has emptied the caches, s."""
    message: float
    """CPU time of both ends of a message, s."""
    byte: float
    """CPU time of a byte, s."""
    error: float
    """Greatest relative error of these two at what was fitted."""
    delay: float
    per_byte: float
    """Time of a message, and of a byte, in the link, s."""
    halved_from: int
    """Bytes of a vector from which on it is halved."""

    def parts(self, ranks: int, values: int) -> tuple[int, int]:
        """Return the messages of an exchange, one after the other, and all bytes of these."""
        return _parts(ranks, values, self.halved_from)

    def cpu(self, ranks: int, values: int) -> float:
        """Return the CPU time of an exchange, s."""
        count, size = self.parts(ranks, values)
        return self.first + count * self.message + size * self.byte

    def seconds(self, ranks: int, values: int) -> float:
        """Return the time of an exchange between machines, s."""
        count, size = self.parts(ranks, values)
        return self.cpu(ranks, values) + count * self.delay + size * self.per_byte


def _parts(ranks: int, values: int, halved_from: int) -> tuple[int, int]:
    count, size = messages(ranks), 4 * values
    return (2 * count, 2 * size) if size >= halved_from else (count, count * size)


def _fit(
    found: dict[int, list[Any]], exchanges: dict[int, int], delay: float, mbit: float
) -> _Model:
    """Fit the CPU time of exchanges, minimising relative errors.

    ``exchanges`` has how many an update makes of so many values.
    """
    rows, times = [], []
    for ranks, hosts in found.items():
        halved = hosts[0]["halved_from"]
        # Those in a row, of which none is the first after work; then those of an update.
        for values in _SIZES:
            rows.append((0, *_parts(ranks, values, halved)))
            times.append(_cpu(hosts, values))
        parts = [
            k * np.array((1, *_parts(ranks, values, halved))) for values, k in exchanges.items()
        ]
        rows.append(sum(parts))
        times.append(_exchanges(hosts))
    scaled = np.array(rows, float) / np.array(times)[:, None]
    solution, *_ = np.linalg.lstsq(scaled, np.ones(len(times)), rcond=None)
    fitted = np.maximum(solution, (0.0, 1e-7, 1e-13))
    error = float(np.abs(scaled @ fitted - 1.0).max())
    halved = int(np.median([hosts[0]["halved_from"] for hosts in found.values()]))
    return _Model(*fitted.tolist(), error, delay, 8e-6 / mbit, halved)


def _cpu(hosts: list[Any], values: int) -> float:
    """Return the CPU time of an exchange in a row of them, the mean over hosts.

    Other processes can only add to it: the lower quartile counts.
    """
    return float(np.quantile([host["alone"][values] for host in hosts], 0.25, axis=1).mean())


def _show_turns(count: int, hosts: list[Any]) -> None:
    """Print the exchange beside gloo's ring, turn by turn."""
    for values in _SIZES:
        # Of the real time the slowest host's counts, of the CPU time the mean.
        each = {way: np.array([h["turns"][values][way] for h in hosts]) for way in ("ours", "ring")}
        real = each["ours"][..., 0].max(0) / each["ring"][..., 0].max(0)
        cpu = each["ours"][..., 1].mean(0) / each["ring"][..., 1].mean(0)
        print(
            f"{count:>3} hosts, {4 * values / 1e3:>5.1f} kB beside gloo's ring: real time "
            f"{np.median(real):.2f} ({real.min():.2f} to {real.max():.2f}), CPU time "
            f"{np.median(cpu):.2f} ({cpu.min():.2f} to {cpu.max():.2f})"
        )


def _figure(rows: list[dict[str, Any]], fitted: list[int], args: Namespace) -> bytes:
    """Return a figure (PNG) of how many times as much is learned from in the time of one."""
    counts = [row["processes"] for row in rows]
    times = [row["processes"] * row["efficiency"] for row in rows]
    figure = Figure((4.4, 3.0), layout="constrained")
    axes = figure.subplots()
    axes.loglog(counts, counts, "--", color="#888888", lw=1, label="perfect")
    axes.loglog(counts, times, color="#0072B2", lw=1.4, label="model")
    shown = [(c, t) for c, t in zip(counts, times, strict=True) if c in fitted]
    axes.loglog(*zip(*shown, strict=True), "o", color="#D55E00", ms=4, label="measured")
    axes.set_xlabel("processes, each on a host of its own")
    axes.set_ylabel("samples/s, in those of one")
    axes.set_title(f"{args.recipe}, {args.mbit:g} Mbit/s, {args.delay_ms:g} ms", fontsize=9)
    axes.legend(frameon=False)
    return encode(figure, "png")


def _column(hosts: list[Any], column: int) -> list[list[float]]:
    """Return one figure of each host's updates: real time, work's CPU time or exchanges'."""
    return [[update[column] for update in host["updates"]] for host in hosts]


def _slowest(hosts: list[Any]) -> float:
    """Return the CPU time of the slowest host's work in an update, the median over updates."""
    return float(np.median(np.max(_column(hosts, 1), axis=0)))


def _exchanges(hosts: list[Any]) -> float:
    """Return the CPU time of an update's exchanges, as `_cpu` does."""
    return float(np.quantile(_column(hosts, 2), 0.25, axis=1).mean())
