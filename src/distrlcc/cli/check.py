"""Check the simulator, the link model and users' plug-ins."""

import sys
from argparse import Namespace

from distrlcc.cli.output import Countdown, note
from distrlcc.errors import ConfigError, DistrlccError, unknown_name
from distrlcc.sim.check import compare, random_script
from distrlcc.sim.link import read_log, replay
from distrlcc.sim.trace import load_trace


def run_sim(args: Namespace) -> int:
    """Compare the compiled simulator with the reference on random scenarios.

    Flags:
        --scenarios N {1..} =200  number of scenarios
        --seed N {0..} =0  seed of the scenarios
    """
    mismatches = 0
    for k in Countdown(range(args.scenarios), lambda _: f"comparing {args.scenarios} scenarios"):
        if (difference := compare(random_script(args.seed, k))) is not None:
            mismatches += 1
            print(f"scenario {k}: {difference}", file=sys.stderr)
    print(f"mismatches: {mismatches} of {args.scenarios}")
    return 1 if mismatches else 0


def run_link(args: Namespace) -> int:
    """Feed a mahimahi log's arrivals to the link model and compare every departure and drop.

    Flags:
        log LOG {path}  log of mm-link
        --trace! TRACE  the trace that the link ran
    """
    result = replay(read_log(args.log), load_trace(args.trace))
    for line in result.mismatches[:10]:
        print(line, file=sys.stderr)
    print(
        f"arrivals: {result.arrivals}, opportunities: {result.opportunities}, "
        f"departures: {result.departures}, drops: {result.drops}, "
        f"mismatches: {len(result.mismatches)}"
    )
    return 1 if result.mismatches else 0


def run_plugin(args: Namespace) -> int:
    """Check a plug-in against the contract of its kind, and time it.

    distrlcc check plugin ./mine.py:reward

    Flags:
        reference REF  ./file.py:name, module:name, or as a package registers it
        --contract KIND =  reward, observation, action, suite, scheme, learner, network, explorer or
            stopper (default: as it looks)
    """
    from distrlcc.cli.watched import watched

    code, line = watched(lambda: _check_plugin(args), f"plugin {args.reference}")
    if code == 2:
        raise ConfigError(line)
    print(line, file=sys.stderr if code else sys.stdout)
    return code


def _check_plugin(args: Namespace) -> tuple[int, str]:
    from distrlcc.cli.plugin_checks import CHECKS, kind_of

    kind = args.contract
    try:
        kind = kind or kind_of(args.reference)
        if kind not in CHECKS:
            raise unknown_name("contract", kind, CHECKS)
        note(f"checking {kind} {args.reference}, after compiling what it needs ...")
        figure = CHECKS[kind](args.reference)
    except DistrlccError as error:
        return 2, str(error)
    except BaseException as error:  # the user's code may raise what it likes
        why = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        return code, f"{kind or 'plugin'} {args.reference}: {' '.join(why.split())}"
    return 0, f"{kind} {args.reference}: ok; {figure}"
