"""Take the pictures of docs/board.md: each view of a board, and a report page, in a real browser.

python scripts/board_pictures.py RUNS [REPORT.html] --out docs

RUNS is a folder of runs; it needs Debian's chromium and the package playwright.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

SWITCHES = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync"
VIEWS = {
    "runs": ("#runs", "table"),
    "playground": ("#playground?beside=cubic&beside_at=4&senders=one&senders=bbr", "canvas"),
    "map": ("#map?own=one&other=cubic&x=rate&y=rtt", "rect"),
    "policies": ("#policies", ".card"),
}


def main() -> int:
    """Serve the runs; write board-VIEW.png of each view, and board-phone.png of one at 390 px."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("report", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    args = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        print("no chromium here: run scripts/install-test-tools", file=sys.stderr)
        return 2
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "distrlcc", "board", str(args.runs), "--port", "0"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as board,
        sync_playwright() as drivers,
    ):
        try:
            assert board.stdout is not None
            address = board.stdout.readline().split()[1]
            browser = drivers.chromium.launch(executable_path=chromium, args=SWITCHES.split())
            shots = [
                (name, 1280, "light", address + view, ready)
                for name, (view, ready) in VIEWS.items()
            ]
            shots.append(("phone", 390, "dark", address + VIEWS["playground"][0], "canvas"))
            if args.report is not None:
                page = args.report.resolve().as_uri()
                shots.append(("report", 1280, "light", page, "canvas"))
            first = browser.new_page()  # the first answer loads what is compiled
            first.set_default_timeout(300_000)
            first.goto(shots[1][3])
            first.wait_for_selector("canvas")
            first.close()
            for name, width, scheme, where, ready in shots:
                size = {"width": width, "height": 860 if width > 500 else 1500}
                page = browser.new_page(viewport=size, color_scheme=scheme)
                page.set_default_timeout(300_000)
                page.goto(where)
                page.wait_for_selector(ready, state="attached")
                page.wait_for_timeout(1500)
                page.screenshot(path=args.out / f"board-{name}.png")
                page.close()
                print(args.out / f"board-{name}.png")
            browser.close()
        finally:
            board.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
