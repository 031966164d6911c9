"""Named suites of scenarios: the same suite, split and index mean the same link everywhere.

A suite is a function from (split, index) to a `Scenario`. The generated suites draw ``train``,
``validation`` (which chooses among checkpoints) and ``test`` (which reports) from one distribution
with seeds that never meet. Suites of given links (Indigo's, files, folders) have the same links in
all splits; their random losses differ, and ``train`` starts traces anywhere.
"""

import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, count
from pathlib import Path
from typing import Any

from distrlcc.config import check_fields, from_dict, read_toml, told
from distrlcc.control.state import SCHEMES
from distrlcc.errors import ConfigError, TraceError, printable, reading, unknown_name
from distrlcc.files import crc32
from distrlcc.plugins import Registry, function, is_reference
from distrlcc.sim import families, mixed
from distrlcc.sim.queues import parse_queue
from distrlcc.sim.scenario import Link, Scenario
from distrlcc.sim.trace import GENERATORS, expanded, load_trace
from distrlcc.types import NANOSECONDS

MIN_TRACE_S, MAX_TRACE_S = 30.0, 4 * 3600.0  # bounds of a trace's scenario, s
TEST_LINKS = 512  # scenarios of a generated suite that are evaluated unless told otherwise
_SUFFIXES = (".up", ".down", ".trace")  # these must be traces in a folder; other files may be
_SHOWN = 5  # files of a folder that are left out by name


@dataclass(frozen=True)
class Suite:
    """A family of scenarios."""

    build: Callable[[str, int], Scenario]  # from split and index to the scenario
    held_out: int  # scenarios in `validation` and in `test`; `train` has as many as wanted
    most_flows: int = 1  # the greatest number of flows of a scenario

    def __post_init__(self) -> None:
        check_fields(self, "held_out most_flows", 1)

    def size(self, split: str) -> int | None:
        """Return how many scenarios a split has; None: as many as wanted."""
        return None if split == "train" else self.held_out

    def scenario(self, split: str, index: int) -> Scenario:
        """Return a scenario; a finite suite starts again after its last."""
        size = self.size(split)
        return self.build(split, index if size is None else index % size)

    def scenarios(self, split: str, count: int | None = None) -> list[Scenario]:
        """Return the first scenarios of a split: ``count``, or all (`TEST_LINKS` if endless)."""
        size = self.size(split)
        if size is not None:
            count = size if count is None else min(count, size)
        return [self.build(split, k) for k in range(TEST_LINKS if count is None else count)]


def _given(scenarios: tuple[Scenario, ...], split: str, index: int) -> Scenario:
    """Return a given link as a split has it: ``test`` as it is, the others with other losses."""
    scenario = scenarios[index % len(scenarios)]
    if split == "test":
        return scenario
    draw = families.draws(scenario.name, split, index, 2)
    link = scenario.link
    if link.trace is not None:
        period = load_trace(link.trace).period_ns / NANOSECONDS
        link = replace(link, trace_start_s=round(link.trace_start_s + period * draw[0], 3))
    return replace(scenario, link=link, seed=round(2**32 * draw[1]))


def _links(name: str, links: Iterable[tuple[str, Link]], duration_s: float) -> Suite:
    """Return a suite of links with their keys, the same in all splits."""
    scenarios = [
        Scenario(f"{name}/{key}", link, duration_s=duration_s, seed=number)
        for number, (key, link) in enumerate(links)
    ]
    return _listed_suite(name, scenarios)


def _listed_suite(name: str, scenarios: Sequence[Scenario]) -> Suite:
    if not scenarios:
        raise ConfigError(f"suite {name}: it has no scenarios; expected one or more")
    most_flows = max(len(scenario.flows) for scenario in scenarios)
    names = unique_names(scenario.name for scenario in scenarios)
    named = tuple(replace(one, name=name) for one, name in zip(scenarios, names, strict=True))
    return Suite(partial(_given, named), len(scenarios), most_flows)


def unique_names(names: Iterable[str], again: str = "{} ({})") -> list[str]:
    """Number the repetitions of a name, from 2 on, so that none hides another."""
    found: dict[str, None] = {}
    for name in names:
        others = (again.format(name, number) for number in count(2))
        found[next(each for each in chain([name], others) if each not in found)] = None
    return list(found)


def _suite(found: Any) -> Suite:
    """Return a user's suite, also of a link generator alone: a function of split and index."""
    suite = found if isinstance(found, Suite) else Suite(function(found), TEST_LINKS)

    def build(split: str, index: int) -> Scenario:
        with reading(ConfigError, f"a suite's function failed for {split!r}, {index}"):
            scenario = suite.build(split, index)
            if not isinstance(scenario, Scenario):
                raise TypeError(f"expected a Scenario, it returned {scenario!r:.80}")
            flows = len(scenario.flows)
            if flows > suite.most_flows:
                raise ValueError(f"it has {flows} flows; give Suite(..., most_flows={flows})")
        return scenario

    return replace(suite, build=build)


_OURS = {
    "random": Suite(families.varied_link, TEST_LINKS),
    "dynamic": Suite(families.changing_link, TEST_LINKS),
    "cellular": Suite(families.cellular_link, 64),
    **{name: Suite(partial(families.hard_link, name), 64) for name in families.HARD},
    "world": Suite(mixed.world_link, TEST_LINKS, mixed.MOST_AGENTS),
    "flows": Suite(mixed.many_flows, 24, 32),
    "flows-32": Suite(mixed.most_flows, 8, 32),
    "genet": Suite(families.genet_link, TEST_LINKS),
    "aurora": Suite(families.training_link, TEST_LINKS),
    "aurora-sweep": _links("aurora-sweep", families.SWEEPS, 60.0),
    "indigo": _links("indigo", ((str(k), link) for k, link in enumerate(families.LINKS)), 10.0),
    "indigo-grid": _links("indigo-grid", families.GRID, 30.0),
    "satellite": _links("satellite", (("600ms", families.SATELLITE),), 30.0),
    **{k: Suite(v, TEST_LINKS, families.MOST_FLOWS) for k, v in families.SHARED.items()},
}
SUITES: Registry[Suite] = Registry("suite", _OURS, _suite)


def trace_suite(
    paths: Iterable[str], delay_ms: float = 20.0, queue: str = "100", loss: float = 0.0
) -> Suite:
    """Make a suite of traces: links of a one-way delay, a queue and losses, one period each.

    `distrlcc.sim.queues` says how a queue reads. A period below `MIN_TRACE_S` is repeated.
    """
    scenarios, spec = [], parse_queue(queue)
    limits: dict[str, Any] = {"queue_packets": spec.packets, "queue_bytes": spec.bytes}
    if spec.kind == "drophead":
        raise ConfigError(f"queue {queue!r}: simulated links have droptail, codel, pie or infinite")
    if spec.mark is not None or spec.kind in ("codel", "pie"):
        limits = {"aqm": queue}
    for path in paths:
        seconds = load_trace(path).period_ns / NANOSECONDS
        if seconds > MAX_TRACE_S:
            _say(f"{path}: {MAX_TRACE_S / 3600:g} of its {seconds / 3600:.3g} hours are measured")
        link = Link(trace=path, delay_ms=delay_ms, loss=loss, **limits)
        seconds = min(max(seconds, MIN_TRACE_S), MAX_TRACE_S)
        scenarios.append(Scenario(f"trace/{Path(path).name}", link, duration_s=seconds))
    return _listed_suite("trace", scenarios)


@dataclass(frozen=True)
class SuiteFile:
    """A suite as a file has it."""

    scenarios: tuple[Scenario, ...]
    name: str = ""


def _suite_file(path: Path) -> Suite:
    """Read a suite from TOML: one scenario, or a list of tables ``[[scenarios]]``."""
    data = read_toml(path)
    if any(key.lower().startswith("scenario") for key in data):
        file = from_dict(SuiteFile, data, source=str(path))
    else:
        file = SuiteFile((from_dict(Scenario, data, source=str(path)),))
    names = [one.name for one in file.scenarios]
    for place, name in enumerate(names):
        if (first := names.index(name)) < place:
            raise ConfigError(
                f"{path}: scenarios[{first}] and scenarios[{place}] have one name, {name!r}; "
                "expected another for each"
            )
    scenarios = [replace(s, link=_resolve_trace(s.link, path.parent)) for s in file.scenarios]
    return _listed_suite(file.name or path.stem, scenarios)


def _traces_in(folder: Path) -> list[str]:
    """Return a folder's traces; say which files are left out, and why; ConfigError, TraceError."""
    traces, others = [], []
    for path in sorted(folder.iterdir()):
        try:
            if path.name.startswith("."):
                raise TraceError("is hidden")
            load_trace(str(path))
            traces.append(str(path))
        except TraceError as error:
            if path.suffix in _SUFFIXES and path.is_file() and path.name[0] != ".":
                raise
            what, _, remedy = str(error).removeprefix(str(path)).lstrip(":, ").partition("; ")
            reason = what if remedy[:8] in ("", "expected") else remedy
            others.append(f"{path.name}: {reason}")
    shown = others[:_SHOWN] + [f"and {len(others) - _SHOWN} more"] * (len(others) > _SHOWN)
    if not traces:
        raise ConfigError("; ".join([f"{folder}: no trace stands in this folder", *shown]))
    if others:
        _say("\n  ".join([f"{folder}: traces: {len(traces)}; left out:", *shown]))
    return traces


@cache
def _say(lines: str) -> None:
    print(printable(lines), file=sys.stderr)  # noqa: T201


def _resolve_trace(link: Link, base: Path) -> Link:
    if link.trace is None or link.trace.startswith(tuple(f"{name}:" for name in GENERATORS)):
        return link
    return replace(link, trace=str(base / expanded(link.trace)))


def load_suite(name: str) -> Suite:
    """Return the suite of a name or reference, a link's id, a TOML file or folder of traces."""
    if is_suite(name):
        return SUITES[name]
    if is_suite(_parted(name)[0]):
        return _listed_suite(name, [scenario_by_id(name)])
    path = expanded(name)
    if path.suffix == ".toml":
        return _suite_file(path)
    if os.path.isdir(path):  # never raises, whatever the name
        return trace_suite(_traces_in(path))
    if os.path.isfile(path):
        raise ConfigError(
            f"{name}: is neither a .toml file nor a folder; give a trace as a trace, not as a suite"
        )
    raise unknown_name("suite (or TOML file, or folder of traces)", name, _names())


def pinned_suite(name: str) -> str:
    """Return a suite's or link's name as it is kept; see `distrlcc.plugins.Registry.pinned`."""
    suite, rest = _parted(name)
    return "/".join([SUITES.pinned(suite), *rest]) if is_suite(suite) else name


def is_suite(name: str) -> bool:
    """Say whether a name is that of a suite: ours, a registered one or a reference."""
    return name in SUITES or is_reference(name) or name in SUITES.registered


def _names() -> list[str]:
    return [*SUITES, *SUITES.registered]


def _parted(identifier: str) -> tuple[str, list[str]]:
    """Part a link's id into its suite, which may be a reference with a path, and the rest."""
    start = identifier.rfind(":") + 1
    name, *rest = identifier[start:].split("/")
    return identifier[:start] + name, rest


def digest(scenario: Scenario, world: str = "") -> str:
    """Return what two links share if all but their names, and those of traces' files, is alike."""
    link, times = scenario.link, []
    if link.trace is not None:
        times.append(load_trace(link.trace).times_ns)
        link = replace(link, trace="")
    same = told(replace(scenario, name="", link=link))
    return f"{crc32(f'{world}{same}', times):08x}"


def written(names: Iterable[str]) -> dict[str, str]:
    """Return a digest of the links of each file and folder of traces among suites' names."""
    files = {name: load_suite(name) for name in names if not is_suite(_parted(name)[0])}
    found = {name: "".join(map(digest, suite.scenarios("test"))) for name, suite in files.items()}
    return {f"links of {name}": f"{crc32(text, ()):08x}" for name, text in found.items()}


def scenario_by_id(identifier: str) -> Scenario:
    """Return the scenario of an id such as ``random/test/17``, ``indigo/4``; raises ConfigError."""
    suite_name, rest = _parted(identifier)
    if not is_suite(suite_name):
        raise unknown_name("suite", suite_name, _names())
    suite = SUITES[suite_name]
    split = rest[0] if len(rest) == 2 else "test"
    if split not in families.SPLITS:
        raise unknown_name("split", split, families.SPLITS)
    if not rest or not rest[-1].isdecimal() or len(rest[-1]) > 18:
        raise ConfigError(f"scenario {identifier!r}: expected SUITE/INDEX or SUITE/SPLIT/INDEX")
    index, size = int(rest[-1]), suite.size(split)
    if size is not None and index >= size:
        raise ConfigError(f"scenario {identifier!r}: {suite_name} has {size}, from 0")
    return suite.scenario(split, index)


def check_agents(scenario: Scenario, most: int = 1) -> None:
    """Raise ConfigError if the first flows are not the only agents, or more than ``most``."""
    schemes = [flow.scheme for flow in scenario.flows]
    count = schemes.count("agent")
    if count == 0 or "agent" in schemes[count:]:
        raise ConfigError(
            f"scenario {scenario.name}: its flows are {', '.join(schemes)}; expected agent first "
            "and schemes after it"
        )
    if count > most:
        raise ConfigError(
            f"scenario {scenario.name}: it has {count} agents; expected "
            f"{'one agent first' if most == 1 else f'{most} agents first'} and schemes after it "
            f"(env.agents={count} trains on it, distrlcc fairness measures it)"
        )


BEST_CWND = "best-cwnd"  # no scheme but a window, the best constant one: see `with_scheme`


def with_scheme(scenario: Scenario, scheme: str) -> Scenario:
    """Return a scenario whose agents run a scheme or share its `BEST_CWND`; raises ConfigError."""
    check_agents(scenario, len(scenario.flows))
    agents = sum(flow.scheme == "agent" for flow in scenario.flows)
    changes: dict[str, Any] = {"scheme": scheme}
    if scheme in SCHEMES:  # ours have first windows and rates of their own, but for `fixed`
        changes |= dict.fromkeys(["pacing_mbps"] if scheme == "fixed" else ["pacing_mbps", "cwnd"])
    if scheme == BEST_CWND:
        window = max(best_cwnd(scenario) / agents, 1.0)
        changes = {"scheme": "fixed", "pacing_mbps": None, "cwnd": window}
    flows = (replace(f, **changes) if f.scheme == "agent" else f for f in scenario.flows)
    return replace(scenario, flows=tuple(flows))


def best_cwnd(scenario: Scenario) -> float:
    """Return the constant window for a link, packets: searched for, or least that fills it."""
    link = scenario.link
    if link.best_cwnd is not None:
        return link.best_cwnd
    rtt_ms = 2 * link.delay_ms + scenario.flows[0].extra_rtt_ms
    return 1.0 + math.ceil(round(families.bdp_packets(mean_rate_mbps(scenario), rtt_ms), 6))


def mean_rate_mbps(scenario: Scenario) -> float:
    """Return a link's mean rate over the scenario's changes, Mbit/s; a policer's bounds it."""
    link = scenario.link
    most = math.inf if link.policer_mbps is None else link.policer_mbps
    if link.trace is not None:
        return min(load_trace(link.trace).mean_mbps, most)
    rate, since, total = link.rate_mbps or 0.0, 0.0, 0.0
    for change in link.changes:
        if change.rate_mbps is not None and change.at_s < scenario.duration_s:
            total += rate * (change.at_s - since)
            rate, since = change.rate_mbps, change.at_s
    return min((total + rate * (scenario.duration_s - since)) / scenario.duration_s, most)
