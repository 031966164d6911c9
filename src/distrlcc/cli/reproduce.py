"""Train a recipe anew and see whether it comes out as its row of results says.

distrlcc reproduce gail
distrlcc reproduce dagger --seeds 1 --out runs/again

Each seed is trained in full, minutes each, and scored on the links that the row was scored on. Done
again it goes on with what is missing. Exit code 1: more than a tenth of the scores differ.

Flags:
    recipe RECIPE  one with results; see 'policies'
    --seeds N {1..10} =3  train with the seeds 0 to N - 1
    --out DIR {path}  default: runs/reproduce/RECIPE
    --record  do not compare: make this the row, and the best seed's policy the one that comes with
        the package
"""

from argparse import Namespace
from pathlib import Path

from distrlcc.cli.output import Countdown, note
from distrlcc.errors import ConfigError, unknown_name
from distrlcc.recipes.experiment import EXPERIMENTS
from distrlcc.recipes.reproduction import Reproduction
from distrlcc.recipes.result_row import shipped_rows


def run(args: Namespace) -> int:
    from distrlcc.cli.main import main

    if args.recipe not in EXPERIMENTS:
        raise unknown_name("recipe with results", args.recipe, EXPERIMENTS)
    expected = shipped_rows().get(args.recipe)
    if expected is None and not args.record:
        raise ConfigError(
            f"there is no row of results for {args.recipe!r} to compare with; add --record to make "
            "one"
        )
    if args.record and args.seeds < 2:
        raise ConfigError("--record with --seeds 1: a row needs a spread; expected 2 seeds or more")
    # Train and score.
    folder = args.out or Path("runs") / "reproduce" / args.recipe
    reproduction = Reproduction(EXPERIMENTS[args.recipe], folder, main, note, Countdown)
    row = reproduction.row(range(args.seeds))
    row.save(folder / "row.json")
    # Record, or compare.
    if args.record or expected is None:
        reproduction.ship(row)
        print(f"{args.recipe}: recorded, with the policy of seed {row.shipped}")
        return 0
    differences = expected.differences(row)
    for line in differences:
        print(f"differs: {line}")
    count = len(expected.measured())
    print(f"{args.recipe}: {count - len(differences)} of {count} scores as the results say")
    return 1 if len(differences) > expected.tolerated else 0
