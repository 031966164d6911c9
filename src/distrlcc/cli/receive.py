"""Receive what 'distrlcc send' sends.

distrlcc receive
distrlcc receive --listen 127.0.0.1:0 --count 1 --json -
"""

from __future__ import annotations

import sys
from argparse import SUPPRESS, Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING

from distrlcc.cli.output import add_json, emit_json
from distrlcc.cli.parser import Parser, number, whole
from distrlcc.cli.send import PORT, refuse_files

if TYPE_CHECKING:
    from distrlcc.net.receiving import Received
    from distrlcc.transport.handshake import Session


def add_arguments(parser: Parser) -> None:
    """Add the command's arguments."""
    add = parser.add
    text = f"where (default: 0.0.0.0:{PORT}); port 0 takes any"
    add("--listen ADDR[:PORT]", text, default=f"0.0.0.0:{PORT}")
    add("--count N", "end after N flows", whole(1), 0)
    add("--timeout S", "give up a sender that says nothing for so long", number(0.5, 3600.0), 30.0)
    add_json(parser)
    add("--folder", SUPPRESS, nargs="?", const="")
    add("--max-mb", SUPPRESS, nargs="?", const="")


def run(args: Namespace) -> int:
    """Serve until Ctrl-C or ``--count``; 1 when a flow of these did not end well."""
    from distrlcc.net.receiving import ReceiveServer
    from distrlcc.net.udp_socket import UdpSocket, resolve, shown
    from distrlcc.processes import run_soon
    from distrlcc.runs.stopper import Stopper

    # Refuse what cannot work before anything runs.
    refuse_files("--folder", args.folder)
    refuse_files("--max-mb", args.max_mb)
    out = sys.stderr if args.json == "-" else sys.stdout
    ended: list[Received] = []

    def say(line: str) -> None:
        print(line, file=out, flush=True)

    def begin(session: Session) -> None:
        say(f"{shown(session.address)} begins")

    def end(received: Received) -> None:
        if args.json or args.count:
            ended.append(received)
        say(f"{shown(received.address)} ended: {_outcome(received)}")

    # Serve.
    with UdpSocket(bind=resolve(args.listen, "--listen", PORT)) as socket:
        server = ReceiveServer(
            socket, silence_s=args.timeout, count=args.count, on_begin=begin, on_end=end
        )
        say(f"listening on {shown(socket.address)} (UDP)")
        run_soon()
        with Stopper() as stopper:
            server.run(lambda: bool(stopper.signal))
    # Sum up.
    odd = [f"{count} {name}" for name, count in server.counts.items() if name in _ODD]
    if odd:
        say("not for us: " + ", ".join(odd))
    sessions = [
        asdict(each) | {"address": shown(each.address), "mbps": each.mbps} for each in ended
    ]
    emit_json(args.json, {"sessions": sessions, "datagrams": dict(server.counts)})
    if stopper.signal:
        return 128 + stopper.signal
    return int(any(each.failure for each in ended))


_ODD = ("refused", "other_version", "malformed", "stray")


def _outcome(received: Received) -> str:
    return received.failure or (
        f"{received.seconds:.1f} s, {received.mbps:.2f} Mbit/s, {received.packets} packets, "
        f"{received.duplicates} twice, {received.reordered} out of order"
    )
