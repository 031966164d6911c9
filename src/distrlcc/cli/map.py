"""Draw where a policy or a scheme holds a property, over two dimensions of links.

distrlcc map one --x rate --y rtt --out map
distrlcc map runs/mine --x jitter --y rate --against cubic --at rtt=20
distrlcc map one --x flows --y rate --property fair

Flags:
    $CONTENDER
    --x NAME =rate  a dimension, such as rate, rtt, queue, loss, jitter, ack_jitter, flows
    --y NAME =rtt  another
    --at NAME=VALUE,… =  values of the other dimensions (default: 20 Mbit/s, 40 ms, a queue of 1
        BDP)
    --property NAME =use  the property that is judged
    --against A,B,…  schemes beside it (default: cubic,bbr,copa,vegas,reno)
    --out DIR {path} =map  write map.html, map.png and map.json there
    $JSON
"""

from argparse import Namespace

import numpy as np

from distrlcc.cli.contenders import contender
from distrlcc.cli.output import Countdown, check_report, command_line, console, emit_json
from distrlcc.control.state import SCHEMES
from distrlcc.errors import ConfigError, listed, unknown_name
from distrlcc.evaluation import stress
from distrlcc.evaluation.contender import is_scheme
from distrlcc.evaluation.stress_map import dimension_named, map_of, point_at


def run(args: Namespace) -> int:
    """Judge a grid of links, and draw it."""
    # All that can be refused is refused before the first link.
    if args.property not in stress.PROPERTIES:
        raise unknown_name("property", args.property, stress.PROPERTIES)
    schemes = tuple(listed(args.against, "--against")) if args.against else stress.SCHEMES
    for name in schemes:
        if not is_scheme(name):
            raise unknown_name("scheme", name, SCHEMES)
    x, y = dimension_named(args.x), dimension_named(args.y)
    if x == y:
        raise ConfigError(f"--x and --y are both {x}; expected two dimensions")
    at = point_at(listed(args.at, "--at"), x, y)
    judged_by = stress.PROPERTIES[args.property]
    if not judged_by.all_schemes and args.against and len(schemes) > 1:
        raise ConfigError(f"--against: {args.property} is judged beside one scheme; give that one")
    schemes = schemes if judged_by.all_schemes else schemes[:1]
    judge = stress.Judge(contender(args), (judged_by,), schemes)
    check_report(args.out)
    # The grid, its figure and its file.
    countdown = Countdown([args.property], lambda key: f"{key} of {judge.contender.name}")
    for _ in countdown:
        found = map_of(judge, x, y, at, args.processes, countdown)
    from distrlcc.evaluation.report import write_map

    says = judge.properties[0].says.format(first=judge.schemes[0])
    page = write_map(args.out, found.to_json(), says, command=command_line())
    emit_json(args.json, found.to_json())
    held, judged = int((found.scores >= 1).sum()), int(np.isfinite(found.scores).sum())
    print(f"{says}: on {held} of {judged} links; {page}", file=console(args.json).file)
    return 0
