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

from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from time import sleep
from typing import Any

from distrlcc.cli.output import exposition, note
from distrlcc.errors import ConfigError
from distrlcc.runs.metrics_log import Follower

_NAME = "metrics.jsonl"
_FOUND: dict[tuple[Path, int], tuple[Follower, dict[str, Any]]] = {}  # by path and file
_READS = Lock()


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
        with suppress(OSError), _READS:  # it was removed just now
            status = path.stat()
            # Another file has other figures, as that of a run that went back to its checkpoint.
            follower, figures = _FOUND.setdefault((path, status.st_ino), (Follower(path), {}))
            for row in follower.news():
                with suppress(ValueError, TypeError):  # a damaged line may hold anything
                    figures.update(row)
            more = {"updated_timestamp_seconds": status.st_mtime}
            things.append(({"run": str(path.parent)}, figures | more))
    return exposition("distrlcc_run", things)


def _logs(folders: Sequence[Path]) -> list[Path]:
    found = {path for folder in folders for path in (folder / _NAME, *folder.glob(f"*/{_NAME}"))}
    return sorted(path for path in found if path.is_file())
