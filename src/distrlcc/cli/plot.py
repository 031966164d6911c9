"""Draw a figure for a paper from a report's summary.json, with its numbers as CSV.

distrlcc plot report/summary.json --kind cdf --metric power --out fig.pdf
distrlcc plot report/summary.json --kind time --link random/test/0 --out fig.pdf

Flags:
    summary FILE {path}  a report's summary.json
    --kind {scatter|cdf|box|time} =scatter  scatter: throughput against delay; cdf, box: a metric's
        distribution over links; time: a link that the report drew
    --metric KEY  of cdf and box; see docs/metrics.md (default: power)
    --link NAME =  of time (default: the first)
    --out! FILE {path}  .pdf, .png or .svg; the numbers go to FILE.csv

Rules:
    --metric: for --kind cdf|box
    --link: for --kind time
"""

from __future__ import annotations

from argparse import Namespace

from distrlcc.cli.output import note
from distrlcc.errors import ConfigError, unknown_name
from distrlcc.evaluation.published import draw, read
from distrlcc.evaluation.scores import METRICS
from distrlcc.files import require_output, write_output

KINDS = ("scatter", "cdf", "box", "time")


def run(args: Namespace) -> int:
    """Draw; two files."""
    from distrlcc.evaluation.figures import encode

    kind = args.out.suffix[1:]
    if kind not in ("pdf", "png", "svg"):
        raise ConfigError(f"--out {args.out}: expected a name that ends with .pdf, .png or .svg")
    keys = [metric.key for metric in METRICS]
    if args.metric not in (None, *keys):
        raise unknown_name("metric", args.metric, keys)
    table = args.out.with_name(f"{args.out.name}.csv")
    for path in (args.out, table):
        require_output(path, args.summary)
    summary, series = read(args.summary)
    for line in (*summary.void_notes(), *summary.link_notes()):
        note(f"distrlcc: {line}")
    figure, text = draw(args.kind, summary, series, args.metric or "power", args.link)
    write_output(args.out, encode(figure, kind))
    write_output(table, text.encode())
    print(f"figure: {args.out}\nnumbers: {table}")
    return 0
