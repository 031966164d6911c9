"""Train a recipe anew and compare its scores with its row of results.

distrlcc reproduce gail
distrlcc reproduce dagger --seeds 1 --out runs/again

Each seed is trained in full (minutes) and scored on the row's links. The command goes on with what
is missing if it is given again. At the end --out has a page, reproduce.html. Exit code 1: more than
a tenth of the scores differ.

Flags:
    recipe RECIPE  one with results; see 'policies'
    --seeds N {1..10} =3  train with the seeds 0 to N - 1
    --out DIR {path}  default: runs/reproduce/RECIPE
    --record  do not compare; write the row anew, and ship the best seed's policy
"""

from argparse import Namespace
from importlib.util import find_spec
from math import nan
from pathlib import Path

from distrlcc.cli.output import Countdown, command_line, note
from distrlcc.errors import ConfigError, unknown_name
from distrlcc.extras import missing
from distrlcc.files import write_atomically
from distrlcc.recipes.experiment import EXPERIMENTS
from distrlcc.recipes.reproduction import Reproduction
from distrlcc.recipes.result_row import ResultRow, shipped_rows


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
    if not find_spec("jinja2"):
        note(f"distrlcc: there will be no page: {missing('jinja2')}")
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
    if find_spec("jinja2"):
        write_atomically(folder / "reproduce.html", _page(expected, row, differences).encode())
        print(f"page: {folder / 'reproduce.html'}")
    for line in differences:
        print(f"differs: {line}")
    for suite, key in sorted({*row.measured()} - {*expected.measured()}):
        print(f"new: {suite}, {key}: it is not compared; --record writes it down")
    count = len(expected.measured())
    print(f"{args.recipe}: {count - len(differences)} of {count} scores as the results say")
    return 1 if len(differences) > expected.tolerated else 0


def _page(expected: ResultRow, row: ResultRow, differences: list[str]) -> str:
    from distrlcc.evaluation.page import Page, Section, Tile
    from distrlcc.evaluation.scorecard import known_metric
    from distrlcc.evaluation.tables import Cell, plain_table

    lines = []
    for suite, key in expected.measured():
        m, how = known_metric(key, expected.scores[suite]), "passed"
        if any(line.startswith(f"{suite}, {key}:") for line in differences):
            how = "failed"
        ours, half = expected.mean(suite, key), expected.half_width(suite, key, len(row.seeds))
        theirs = row.mean(suite, key) if key in row.scores.get(suite, {}) else nan
        found = Cell(m.text(theirs) + " ✗" * (how == "failed"), how=how)
        apart = Cell(m.text(theirs - ours))
        lines.append((f"{suite}: {m.title}", m.text(ours), m.text(half), found, apart))
    heads = ("score", "expected", "± (95%)", "found", "apart")
    count, agree = len(lines), len(lines) - len(differences)
    answer = (
        f"{agree} of {count} scores of {row.recipe} came out as the results say; "
        f"{expected.tolerated} may differ."
    )
    passed = len(differences) <= expected.tolerated
    tiles = [
        Tile(f"{agree} of {count}", "scores agree", how="main" if passed else "bad"),
        Tile(str(len(row.seeds)), "seeds trained"),
        Tile(f"{sum(row.cpu_minutes):.0f}", "of training", "min CPU"),
    ]
    facts = {"expected of": f"distrlcc {expected.version}", "found with": f"distrlcc {row.version}"}
    sections = [Section("Scores", [plain_table("Scores", heads, lines), *differences])]
    title = f"{row.recipe}, trained again"
    return Page(title, command_line(), sections, "", answer, tiles, facts).html()
