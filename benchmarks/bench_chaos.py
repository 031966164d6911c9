"""Kill, freeze, cut off and starve runs of every topology at random, and see that nothing is lost.

A session is one run, its faults, its ends and resumptions. Session number k of a seed S is the
first of seed S + k, so that each can be played alone. Needs root and iproute2.

python -m benchmarks chaos --minutes 60
python -m benchmarks chaos --minutes 0 --seed 17 --only ranks

Flags:
    --minutes M {0.0..} =60.0  begin no session after so long; 0 plays one
    --seed S {0..} =0  seed of the first session
    --only TOPOLOGY {single|ranks|nodes|actors|ray-ranks|ray-actors}  one of single, ranks, nodes,
        actors, ray-ranks, ray-actors
    --faults N {1..100} =8  faults in a session
    $JSON
"""

from __future__ import annotations

import signal
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict

from benchmarks.chaos_run import TOPOLOGIES
from benchmarks.chaos_session import ChaosError, Outcome, Session
from distrlcc.cli.output import console, emit_json


def run(args: Namespace) -> int:
    """Play sessions and judge them; 0 if nothing failed, else 1."""
    out = sys.stderr if args.json == "-" else sys.stdout
    begin, seed, outcomes = time.monotonic(), args.seed, list[Outcome]()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that all is removed

    def say(line: str) -> None:
        print(f"{(time.monotonic() - begin) / 60.0:5.1f} min  {line}", file=out, flush=True)

    try:
        while not outcomes or time.monotonic() - begin < 60.0 * args.minutes:
            topology = args.only or list(TOPOLOGIES)[seed % len(TOPOLOGIES)]
            session = Session(topology, seed, args.faults, say)
            try:
                with session, suppress(ChaosError):
                    session.play()
            finally:
                outcomes += session.outcomes
                if session.failures():
                    again = f"--minutes 0 --faults {args.faults} --seed {seed} --only {topology}"
                    say(f"FAILED, see {session.folder}; again: python -m benchmarks chaos {again}")
            seed += 1
    finally:
        minutes = (time.monotonic() - begin) / 60.0
        if outcomes:
            show(outcomes, minutes, args.json)
        told = [asdict(outcome) for outcome in outcomes]
        emit_json(args.json, {"seed": args.seed, "minutes": minutes, "outcomes": told})
    return int(any(outcome.failures for outcome in outcomes))


def show(outcomes: Sequence[Outcome], minutes: float, target: str | None) -> None:
    """Print a table: for each kind of fault and topology how many were ok, and not."""
    from rich.table import Table

    topologies = list(dict.fromkeys(outcome.topology for outcome in outcomes))
    table = Table("ok / failed", *topologies)
    for kind in dict.fromkeys(outcome.kind for outcome in outcomes):
        cells = []
        for topology in topologies:
            same = [each for each in outcomes if (each.kind, each.topology) == (kind, topology)]
            bad = sum(bool(outcome.failures) for outcome in same)
            cells.append(f"{len(same) - bad} / {bad}" if same else "")
        table.add_row(kind, *cells)
    for what, key, digits in (
        ("named after, s", "named", 1),
        ("time of an update, ms", "update_ms", 0),
        ("rank 0's memory, MB", "leader_mb", 0),
    ):
        cells = []
        for topology in topologies:
            some = [getattr(o, key) for o in outcomes if o.topology == topology and getattr(o, key)]
            ends = (f"{end(some):.{digits}f}" for end in (min, max)) if some else ()
            cells.append(" to ".join(ends))
        table.add_row(what, *cells)
    printer = console(target)
    printer.print(table)
    faults = sum(outcome.kind not in ("started", "resumed") for outcome in outcomes)
    failed = sum(bool(outcome.failures) for outcome in outcomes)
    rate = f"{faults} faults and ends in {minutes:.0f} min, {60.0 * faults / minutes:.0f} an hour"
    printer.print(f"{rate}; {failed} of {len(outcomes)} failed")
