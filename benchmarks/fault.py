"""Faults that are drawn from a seed, and what the documentation promises to follow from each."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from random import Random

_NOTICED = 9.0
"""What is silent for so long, s, has left for the others."""
_KILLED, _KILLED_ON_RAY, _SILENT = 6.0, 10.0, 15.0
"""Within what the others name a process that was killed, and one that is silent, s."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RAY = """kill rank 3, kill leader 2, kill launcher 1, kill helper 0.5, freeze rank 2,
    freeze leader 2, garbage 1, signal launcher 1, full disk 0.5, remove 0.2"""
_WEIGHTS = {
    "single": """kill leader 4, freeze leader 2, signal launcher 2, full disk 1, remove 0.3""",
    "ranks": """kill rank 3, kill leader 3, kill all 1, kill launcher 1, kill server 0.5,
        kill helper 0.3, freeze rank 2, freeze leader 5, freeze launcher 0.5, garbage 1,
        signal launcher 1, full disk 0.7, remove 0.2""",
    "nodes": """kill rank 2, kill leader 2, kill launcher 1.5, kill server 0.5, kill tunnel 0.7,
        kill helper 0.2, freeze rank 1, freeze leader 4, freeze launcher 0.5,
        freeze tunnel 0.7, cut 4, one-way 2, loss 2, garbage 2,
        signal launcher 1.5, full disk 0.5, remove 0.2""",
    "actors": """kill rank 3, kill leader 1, kill launcher 1.5, kill server 0.4, kill tunnel 0.6,
        kill helper 0.2, freeze rank 2, freeze leader 2, freeze tunnel 0.7, cut 3, one-way 2,
        loss 2, garbage 3, signal launcher 1, full disk 0.5, remove 0.2""",
    "ray-ranks": _RAY,
    "ray-actors": _RAY,
}
"""How often each kind of fault hits each process of a topology."""
_ALONE = ("signal", "full disk", "remove", "garbage")
"""Kinds whose end is judged without another fault's."""
_PAIRS = 0.3
"""The share of the others with which another fault happens at once."""
HOSTS = {"nodes": 3, "actors": 3}
"""How many hosts a topology has; else one."""


@dataclass(frozen=True)
class Fault:
    """What happens to a run, and when."""

    kind: str
    role: str = ""
    """Which process: a ``rank`` (or worker), the ``leader`` (rank 0, or the trainer), all of a
    host, its launcher, its fork ``server``, its tunnel, or a ``helper``, which is any other."""
    host: int = 0
    seconds: float = 0.0
    number: int = 0
    """Of the signal."""
    aim: str = ""
    """What the run is to be at: ``write`` of a file, ``score`` of an update."""
    group: bool = False
    """Whether the signal goes to all processes of the launcher's group."""
    pick: float = 0.0
    """Which of several processes: a share of them."""
    pause: float = 0.0
    """Before it, s; below 0: until all ranks are back."""
    also: Fault | None = None
    """What else happens while it does."""

    def __str__(self) -> str:
        what = signal.Signals(self.number).name if self.number else self.kind
        where = f" on host {self.host}" if self.kind not in ("garbage", "full disk") else ""
        parts = (
            f" of {'the group of ' * self.group}{self.role}" if self.role else "",
            where,
            f" for {self.seconds:.1f} s" if self.seconds else "",
            f" at a {self.aim}" if self.aim else "",
        )
        return what + "".join(parts) + (f", and {self.also}" if self.also else "")


def draw(dice: Random, topology: str, count: int) -> list[Fault]:
    """Draw a topology's faults."""
    choices = [choice.rsplit(maxsplit=1) for choice in _WEIGHTS[topology].split(",")]
    weights = [float(weight) for _, weight in choices]

    def one() -> Fault:
        return _draw(dice, topology, dice.choices(choices, weights)[0][0])

    plan = []
    for _ in range(count):
        first, second, pairs = one(), one(), dice.random() < _PAIRS
        if pairs and not {first.kind, second.kind} & {*_ALONE}:
            first = replace(first, also=second)
        plan.append(first)
    return plan


def _draw(dice: Random, topology: str, choice: str) -> Fault:
    """Draw what is open in a fault; each draws as often, so that later ones do not move."""
    kind, _, role = choice.strip().partition(" ")
    if choice.strip() == "full disk":
        kind, role = "full disk", ""
    seconds = {
        "freeze": dice.uniform(2.0, 20.0),
        "cut": dice.choice((dice.uniform(0.5, 8.0), dice.uniform(8.0, 40.0))),
        "one-way": dice.choice((dice.uniform(0.5, 8.0), dice.uniform(8.0, 40.0))),
        "loss": dice.uniform(10.0, 20.0),
        "full disk": dice.uniform(1.0, 6.0),
    }
    host, aim = dice.randrange(HOSTS.get(topology, 1)), dice.choice(("", "write", "write", "score"))
    number, group, pick = dice.choice(_SIGNALS), dice.random() < 0.5, dice.random()
    pause = dice.choice((dice.uniform(0.1, 2.0), -1.0))
    return Fault(
        kind,
        role,
        host if role not in ("leader", "") or kind in ("cut", "one-way", "loss") else 0,
        seconds.get(kind, 0.0),
        int(number) if kind == "signal" else 0,
        aim if role == "leader" else "",
        kind == "signal" and group,
        pick,
        pause,
    )


@dataclass(frozen=True)
class Promise:
    """What the documentation says of a fault."""

    ends: tuple[int, ...] = ()
    """Exit codes of node 0 with which the run may end; none where it goes on."""
    must: bool = False
    """Whether it must end."""
    others: tuple[int, ...] = (3,)
    """Exit codes of the other nodes then."""
    leaves: tuple[int, ...] = ()
    """Exit codes with which nodes other than node 0 may leave a run that goes on."""
    seconds: float = 60.0
    """Within what all have ended, or the run goes on."""
    named: float = 0.0
    """Within what the others name those that were hit, s; 0: nobody need."""


def promise(topology: str, fault: Fault) -> Promise:
    """Return what is promised of a fault in a topology, and of another at the same time."""
    own = _promise(topology, fault)
    if fault.also is None:
        return own
    other = _promise(topology, fault.also)
    # One that is silent too, or an end, may come before a naming.
    hides = other.must or fault.also.kind in ("freeze", "cut", "one-way")
    return Promise(
        own.ends + other.ends,
        own.must or other.must,
        own.others + other.others,
        own.leaves + other.leaves,
        own.seconds + other.seconds,
        0.0 if hides else own.named,
    )


def _promise(topology: str, fault: Fault) -> Promise:
    code, first = 128 + fault.number, fault.host == 0
    match fault.kind:
        case "signal" if first:
            return Promise((code,), must=True, others=(0,))
        case "signal":
            return Promise(leaves=(code,))
        case "full disk":
            return Promise((2, 3), others=(0, 2, 3), leaves=(2, 3), seconds=75.0)
        case "remove":
            return Promise((2,), must=True, others=(0, 2, 3), seconds=75.0)
        case "kill":
            return _killed(topology, fault.role, first=first)
        case "freeze" | "cut" | "one-way":
            return _silent(topology, fault)
    return Promise()


def _killed(topology: str, role: str, *, first: bool) -> Promise:
    # The others cannot agree without node 0, or have no trainer.
    alone = 30.0 if topology == "actors" else 75.0
    if topology == "single" or (role == "launcher" and first):
        return Promise((-9,), must=True, seconds=alone)
    if role == "launcher":
        return Promise(leaves=(-9,), named=_KILLED)
    if (topology, role) == ("actors", "leader"):
        return Promise((3,), must=True, seconds=15.0)
    if (topology, role) == ("nodes", "server") and first:
        return Promise(named=_KILLED)  # its launcher serves the others' ranks, without any
    if role in ("server", "tunnel"):
        return Promise((3,), must=True, seconds=alone) if first else Promise(leaves=(3,))
    if role == "helper":
        return Promise((3,))
    named = _KILLED_ON_RAY if topology.startswith("ray") else _KILLED
    return Promise(leaves=(3,) if topology == "actors" else (), named=named)


def _silent(topology: str, fault: Fault) -> Promise:
    unseen = topology == "single" or fault.role == "launcher"
    unseen = unseen or (topology, fault.role) == ("ray-actors", "leader")  # it has 20 s
    noticed = fault.seconds > _NOTICED and not unseen
    if topology != "actors":
        return Promise(named=_SILENT * noticed)
    if fault.role == "leader":  # workers that are not called for 15 s leave
        late = fault.seconds > 12.0
        return Promise((3,) * late, leaves=(3,) * late, seconds=120.0)
    return Promise(leaves=(3,), named=_SILENT * noticed)
