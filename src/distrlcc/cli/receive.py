"""Receive what 'distrlcc send' sends.

distrlcc receive
distrlcc receive --listen 127.0.0.1:0 --count 1 --json -

Flags:
    address? ADDR:PORT {gone}  name it by --listen ADDR:PORT
    --listen ADDR[:PORT] =0.0.0.0:4730  address (default: 0.0.0.0:4730); port 0 takes any
    --count N {1..} =0  end after N flows
    --timeout S {0.5..3600} =30.0  give up a sender that is silent for so long
    $JSON
"""

import sys
from argparse import Namespace
from dataclasses import asdict

from distrlcc.cli.output import emit_json
from distrlcc.cli.send import PORT
from distrlcc.net.receiving import Received, ReceiveServer
from distrlcc.net.udp_socket import UdpSocket, resolve, shown
from distrlcc.processes import run_soon
from distrlcc.runs.stopper import Stopper

_ODD = ("refused", "other_version", "malformed", "stray")


def run(args: Namespace) -> int:
    """Serve until Ctrl-C or ``--count``; 1 when a flow of these did not end well."""
    out = sys.stderr if args.json == "-" else sys.stdout
    ended: list[Received] = []

    def say(line: str) -> None:
        print(line, file=out, flush=True)

    def end(received: Received) -> None:
        if args.json or args.count:
            ended.append(received)
        figures = (
            f"{received.seconds:.1f} s, {received.mbps:.2f} Mbit/s of payload, "
            f"{received.packets} packets, {received.duplicates} twice, {received.reordered} "
            "out of order"
        )
        say(f"{shown(received.address)} ended: {received.failure or figures}")

    # Serve.
    with UdpSocket(bind=resolve(args.listen, "--listen", PORT)) as socket:
        server = ReceiveServer(
            socket,
            silence_s=args.timeout,
            count=args.count,
            on_begin=lambda session: say(f"{shown(session.address)} begins"),
            on_end=end,
        )
        say(f"listening on {shown(socket.address)} (UDP)")
        run_soon()
        with Stopper() as stopper:
            server.run(lambda: bool(stopper.signal))
    # Sum up.
    if odd := [f"{count} {name}" for name, count in server.counts.items() if name in _ODD]:
        say("not for us: " + ", ".join(odd))
    sessions = [
        asdict(each) | {"address": shown(each.address), "mbps": each.mbps} for each in ended
    ]
    emit_json(args.json, {"sessions": sessions, "datagrams": dict(server.counts)})
    return 128 + stopper.signal if stopper.signal else int(any(each.failure for each in ended))
