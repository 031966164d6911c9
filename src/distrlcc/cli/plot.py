"""Draw a figure for a paper from a report's summary.json, or a page of a log or a trace.

distrlcc plot report/summary.json --kind cdf --metric power --out fig.pdf
distrlcc plot report/summary.json --kind time --link random/test/0 --out fig.pdf
distrlcc plot up.log --out up.html                               (mahimahi's log, or emulate's)
distrlcc plot links/seven.trace --out seven.html                 (or a generated one: cellular:7)

Flags:
    summary FILE {path}  a report's summary.json, whose numbers go to FILE.csv, too; or a log,
        or a trace
    --kind {scatter|cdf|box|time} =scatter  scatter: throughput against delay; cdf, box: a metric's
        distribution over links; time: a link that the report drew
    --metric KEY  of cdf and box; see docs/metrics.md (default: power)
    --link NAME =  of time (default: the first)
    --out! FILE {path}  .pdf, .png or .svg of a summary, .html of a log or a trace

Rules:
    --metric: for --kind cdf|box
    --link: for --kind time
"""

from argparse import Namespace

from distrlcc.cli.output import command_line, note
from distrlcc.errors import ConfigError, unknown_name
from distrlcc.evaluation.published import draw, read
from distrlcc.evaluation.scores import METRICS
from distrlcc.extras import require
from distrlcc.files import require_output, write_output
from distrlcc.sim.link import read_log
from distrlcc.sim.trace import load_trace


def _page(args: Namespace) -> int:
    """Write the page of a log, whose header begins with ``#``, or of a trace."""
    require("jinja2", "matplotlib")
    from distrlcc.evaluation.report import log_page, trace_page

    require_output(args.out, args.summary)
    if args.summary.is_file() and args.summary.read_bytes()[:1] == b"#":
        page = log_page(read_log(args.summary), args.summary.name, command=command_line())
    else:
        page = trace_page(load_trace(str(args.summary)), command=command_line())
    write_output(args.out, page.encode())
    print(f"page: {args.out}")
    return 0


def run(args: Namespace) -> int:
    from distrlcc.evaluation.figures import encode

    kind = args.out.suffix[1:]
    if kind == "html":
        if args.kind != "scatter":
            raise ConfigError(f"--kind {args.kind}: a log or a trace has one page; leave it out")
        return _page(args)
    if kind not in ("pdf", "png", "svg"):
        raise ConfigError(
            f"--out {args.out}: expected a name that ends with .pdf, .png or .svg, or with .html "
            "for a log or a trace"
        )
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
