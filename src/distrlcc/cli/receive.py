"""Receive what 'distrlcc send' sends: measure, or take files.

distrlcc receive
distrlcc receive --listen 10.0.0.2:4730 --folder incoming
distrlcc receive --listen 127.0.0.1:0 --count 1 --json -
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distrlcc.cli.parser import number
from distrlcc.cli.send import PORT

if TYPE_CHECKING:
    from distrlcc.net.incoming import Incoming, Received


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--listen", default=f"0.0.0.0:{PORT}", metavar="ADDR[:PORT]",
        help=f"where (default: 0.0.0.0:{PORT}); port 0 takes any",
    )  # fmt: skip
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="take files, and put them there (default: none)"
    )
    parser.add_argument(
        "--max-mb", type=number(1e-6, 1e9), default=0.0, metavar="MB",
        help="take files of up to so many MB (default: as there is room)",
    )  # fmt: skip
    parser.add_argument(
        "--count", type=number(1, whole=True), default=0, metavar="N", help="end after N sessions"
    )
    parser.add_argument(
        "--timeout", type=number(0.5, 3600.0), default=30.0, metavar="S",
        help="give up a sender that says nothing for so long (default: 30)",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write all figures as JSON; - for stdout")


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C or ``--count``; 1 when a session of these did not end well."""
    from distrlcc.cli.output import check_json_target, emit_json
    from distrlcc.net.receiving import ReceiveOptions, ReceiveServer
    from distrlcc.net.udp_socket import UdpSocket, resolve, shown
    from distrlcc.runs.stopper import Stopper
    from distrlcc.scheduling import run_soon

    check_json_target(args.json)
    out = sys.stderr if args.json == "-" else sys.stdout
    ended: list[Received] = []

    def say(line: str) -> None:
        print(line, file=out, flush=True)

    def begin(incoming: Incoming) -> None:
        hello, address = incoming.session.hello, incoming.session.address
        what = f"{hello.file_name}, {hello.file_size} bytes" if hello.file_name else "a measurement"
        say(f"{shown(address)} begins: {what}")

    def end(received: Received) -> None:
        if args.json or args.count:
            ended.append(received)
        say(_line(received))

    with UdpSocket(bind=resolve(args.listen, "--listen", PORT)) as socket:
        options = ReceiveOptions(
            args.folder, round(args.max_mb * 1e6), silence_s=args.timeout, count=args.count
        )
        server = ReceiveServer(socket, options, on_begin=begin, on_end=end)
        if server.swept:
            say(f"removed {server.swept} unfinished file(s); transfers are not resumed")
        where = f", files go to {args.folder}" if args.folder else ""
        say(f"listening on {shown(socket.address)} (UDP){where}")
        run_soon()
        with Stopper() as stopper:
            server.run(lambda: bool(stopper.signal))
        counts = {name: value for name, value in asdict(server.counts).items() if value}
    odd = {name: counts[name] for name in _ODD if name in counts}
    if odd:
        say("not for us: " + ", ".join(f"{value} {name}" for name, value in odd.items()))
    emit_json(args.json, {"sessions": [_figures(each) for each in ended], "datagrams": counts})
    if stopper.signal:
        return 128 + stopper.signal
    return int(any(each.failure for each in ended))


_ODD = ("refused", "forged", "expired", "replayed", "other_version", "malformed", "stray")


def _line(received: Received) -> str:
    from distrlcc.net.udp_socket import shown

    who = shown(received.address)
    what = f" {received.name}" if received.name else ""
    if received.failure:
        return f"{who}{what} ended: {received.failure}"
    kept = f", intact: {received.file}" if received.file else ""
    return (
        f"{who}{what} ended: {received.seconds:.1f} s, {received.mbps:.2f} Mbit/s, "
        f"{received.packets} packets, {received.duplicates} twice, {received.reordered} out of "
        f"order{kept}"
    )


def _figures(received: Received) -> dict[str, Any]:
    from distrlcc.net.udp_socket import shown

    values = asdict(received)
    address = shown(received.address)
    file = str(received.file) if received.file else None
    return values | {"address": address, "file": file, "mbps": received.mbps}
