"""Serve the newest figures of runs at /metrics, in the text format that Prometheus reads.

distrlcc metrics
distrlcc metrics runs/mine --listen 0.0.0.0:9464
distrlcc metrics --once > /var/lib/node_exporter/distrlcc.prom

It reads the folders of runs alone, and asks nothing of a training.

Flags:
    runs* RUNS {path}  folders of runs, or of one (default: runs)
    --listen ADDR:PORT =127.0.0.1:9464  address; other machines reach it only outside loopback
    --once  print the figures and end

Rules:
    --listen: not with --once; it serves nothing
"""

import json
import os
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

from distrlcc.cli.output import exposition, note
from distrlcc.errors import ConfigError

_TAILS = 1 << 18, 1 << 23  # bytes at a file's end in which the newest figures stand, scores too
_NAME = "metrics.jsonl"


def run(args: Namespace) -> int:
    """Serve until Ctrl-C."""
    folders = args.runs or [Path("runs")]
    for folder in args.runs:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder; expected a run, or a folder of runs")
    if not _logs(folders):
        note("distrlcc: no run is there yet; runs appear once they begin")
    if args.once:
        print(read_runs(folders), end="")
        return 0
    from distrlcc.board.listening import asked_for, in_url, listening
    from distrlcc.limits import limits
    from distrlcc.runs.stopper import Stopper

    class Handler(BaseHTTPRequestHandler):
        timeout = limits().call

        def do_GET(self) -> None:
            given = self.headers.get("Host", "")
            status, text = 200, ""
            if not asked_for(given, host, port):
                status, text = 403, f"this server is not {given[:80]!r}; ask by its address\n"
            elif self.path != "/metrics":
                status, text = 404, "see /metrics\n"
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write((text or read_runs(folders)).encode())

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass  # whoever asked is gone

    host, _, number = args.listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not number.isdecimal() or int(number) > 65535:
        raise ConfigError(f"--listen {args.listen}: expected ADDR:PORT, as 127.0.0.1:9464")
    server = Server((host, 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listening(host, int(number), "--listen")
    port = server.socket.getsockname()[1]
    with server, Stopper() as stopper:
        Thread(target=server.serve_forever, daemon=True).start()
        print(f"metrics: http://{in_url(host, port)}/metrics   (Ctrl-C ends it)", flush=True)
        while not stopper.signal:
            sleep(limits().tick)
        server.shutdown()
    return 128 + stopper.signal


def read_runs(folders: Sequence[Path]) -> str:
    """Return the newest figures of all runs in folders, and when each last said anything."""
    things = []
    for path in _logs(folders):
        with suppress(OSError):  # it was removed just now
            figures = _newest(path) | {"updated_timestamp_seconds": path.stat().st_mtime}
            things.append(({"run": str(path.parent)}, figures))
    return exposition("distrlcc_run", things)


def _logs(folders: Sequence[Path]) -> list[Path]:
    found = {path for folder in folders for path in (folder / _NAME, *folder.glob(f"*/{_NAME}"))}
    return sorted(path for path in found if path.is_file())


def _newest(path: Path) -> dict[str, Any]:
    """Return each figure's newest value; what is said less often than each update stays."""
    with path.open("rb") as file:
        for tail in _TAILS:
            file.seek(max(0, file.seek(0, os.SEEK_END) - tail))
            if (place := (data := file.read()).rfind(b'"held_out_')) >= 0:
                break
    # The newest score's line, and those of the shorter tail, are all that is decoded.
    begin = max(0, len(data) - _TAILS[0])
    if 0 <= place < begin:
        line = data[data.rfind(b"\n", 0, place) + 1 : data.find(b"\n", place) + 1]
        data = line + data[data.find(b"\n", begin) + 1 :]
    else:
        data = data[begin:]
    figures: dict[str, Any] = {}
    for line in data.splitlines(keepends=True):  # the first may be cut, the last half written
        with suppress(ValueError, TypeError, RecursionError):
            figures |= json.loads(line)
    return figures
