"""Show runs while they learn, and what senders do on any link, as a page on this machine.

distrlcc board                                     (the runs in ./runs)
distrlcc board runs/mine /data/others --open
distrlcc board runs --host 0.0.0.0 --port 8700     (others reach it, with the token that is printed)
distrlcc board s3://bucket/runs                    (the copies at a --storage)

The page reads files alone: it never speaks to a training, and changes nothing.

Flags:
    runs* RUNS  folders of runs, or of one; or URLs of a --storage (default: runs)
    --host ADDRESS =127.0.0.1  address; one that other machines reach needs a token
    --port N {0..65535} =8700  0: a free one
    --open  open it in a browser
"""

import os
import secrets
import webbrowser
from argparse import Namespace
from contextlib import suppress
from pathlib import Path

from distrlcc.cli.output import console, emit_json, note
from distrlcc.errors import ConfigError
from distrlcc.extras import require


def run(args: Namespace) -> int:
    """Serve the page until Ctrl-C."""
    require("starlette", "uvicorn")
    from distrlcc.board.copies import Copies, own_folder
    from distrlcc.board.listening import in_url, is_own, listening
    from distrlcc.board.runs import Runs
    from distrlcc.board.server import Board, serve

    urls = [name for name in dict.fromkeys(args.runs) if "://" in name]
    folders = [Path(name) for name in args.runs or ["runs"] if name not in urls]
    for folder in folders if args.runs else []:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder; expected runs, or a folder that has some")
    # A page must not take a training's time.
    with suppress(OSError):
        os.nice(10)
    with listening(args.host, args.port, "--host") as sock, own_folder() as own:
        places = {own / f"storage-{number}": url for number, url in enumerate(urls)}
        for place, url in places.items():
            note(f"fetching what is shown from {url.partition('?')[0]} ...")
            Copies(url, place)
        labels = {place: url.partition("?")[0].rstrip("/") for place, url in places.items()}
        board = Board(Runs(folders, labels), own)
        host, port = args.host, sock.getsockname()[1]
        token = "" if is_own(host) else secrets.token_urlsafe(24)
        where = f"http://{in_url(host, port)}/{f'?token={token}' if token else ''}"

        def ready() -> None:
            print(f"board: {where}   (Ctrl-C ends it)", flush=True)
            if args.open:
                webbrowser.open(where)

        heard = serve(board, sock, host, token, ready=ready)
    return 128 + heard if heard else 0


def run_try(args: Namespace) -> int:
    """Try policies and schemes on one link: what each does, as a table and curves in the terminal.

    distrlcc try --rate 20 --rtt 40 --queue 30 one bbr
    distrlcc try one cubic --beside cubic --seconds 20
    distrlcc try one cubic --change-at 5 --change-rate 4
    distrlcc try one --trace cellular:3 --toml > link.toml

    Flags:
        senders* SENDER  policy files, runs, shipped policies, or schemes (default: one, cubic, bbr)
        --rate MBPS {float} =20  of the link, Mbit/s
        --rtt MS {float} =40  round trip without a queue
        --queue N {int} =100  packets that the queue holds
        --loss PERCENT {float} =0  lost at random
        --jitter MS {float} =0  of packets on the path
        --ack-jitter MS {float} =0  of acknowledgements
        --aqm NAME =  codel or pie in place of a droptail
        --trace NAME =  a trace in place of the rate: a file, cellular:SEED or the like
        --beside SCHEME =  scheme of a second flow
        --beside-at S {float} =3  its start
        --change-at S {float} =0  time of a change of the link
        --change-rate MBPS {float} =0  the link's rate from then on
        --change-rtt MS {float} =0  its round trip from then on
        --seconds S {float} =10  length of the run
        --toml  print the link as TOML instead, for --suite
        --json FILE {json}  write the curves as JSON; - for stdout

    Rules:
        --beside-at: for --beside; it is that flow's start
        --rate: not with --trace; a trace has its own
        --json: not with --toml; it runs nothing
    """
    from dataclasses import fields

    from distrlcc.board.playground import SCORES, Question, answer, page_of
    from distrlcc.errors import once
    from distrlcc.evaluation.contender import contender_named, distinct
    from distrlcc.evaluation.scores import metric, shown
    from distrlcc.evaluation.tables import plain_table, printed

    question = Question(**{each.name: getattr(args, each.name) for each in fields(Question)})
    if args.toml:
        print(question.toml(), end="")
        return 0
    names = once(args.senders) or ["one", "cubic", "bbr"]
    question.scenario()  # refused before anything runs
    answers = [answer(one, question) for one in distinct(map(contender_named, names))]
    out = console(args.json)
    # The scores, then rate and queue over time as bars of letters.
    heads = ("sender", *(metric(key).title for key in SCORES))
    rows = [(shown(one.contender.name), *map(one.bare, SCORES)) for one in answers]
    out.print(question.words())
    out.print(printed(plain_table("", heads, rows, "sender")))
    drawn = [(shown(one.contender.name), one.series) for one in answers if one.series is not None]
    width = max((len(name) for name, _ in drawn), default=0)
    room = max(min(out.width - width - 24, 80), 20)
    for title, key, unit in (
        ("rate", "rate_mbps", "Mbit/s"),
        ("queueing delay", "queueing_delay_ms", "ms"),
        ("window", "cwnd_packets", "packets"),
    ):
        lines = [(name, _gathered(getattr(series, key), room)) for name, series in drawn]
        top = max((x for _, values in lines for x in values if x == x), default=0.0)
        out.print(f"\n{title}, 0 to {top:.4g} {unit}, over {question.seconds:g} s")
        for name, values in lines:
            out.print(f"  {name:<{width}}  {_bars(values, top)}", highlight=False)
    for one in answers:
        for why in dict.fromkeys(one.scores.reasons.values()):
            print(f"{shown(one.contender.name)}: does not count: {why}", file=out.file)
    emit_json(args.json, page_of(question, answers, names))
    return int(any(one.scores.reasons for one in answers))


def _gathered(values: object, count: int) -> list[float]:
    """Return means of ``count`` parts of a series; NaN where a part has none."""
    import numpy as np

    from distrlcc.evaluation.scores import defined_mean

    found = np.asarray(values, float)
    return [defined_mean(part) for part in np.array_split(found, min(count, len(found)))]


def _bars(values: list[float], top: float) -> str:
    steps = " ▁▂▃▄▅▆▇█"
    return "".join(
        "·" if x != x else steps[round(max(x, 0.0) / top * (len(steps) - 1)) if top else 0]
        for x in values
    )
