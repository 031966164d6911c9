"""Show the cache of compiled code, and remove unused parts.

distrlcc cache
distrlcc cache --clean

Flags:
    --clean  remove other versions' folders
    --all  with --clean: remove this version's, too; the next command compiles anew
    $JSON

Rules:
    --all: needs --clean
"""

import shutil
from argparse import Namespace
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from distrlcc.cli.output import emit_json


def run(args: Namespace) -> int:
    """Show, and clean; 1 where something could not be removed."""
    from distrlcc.control.compiled import CACHE_FOLDER, kept_folders

    rows: list[dict[str, Any]] = []
    left, failed = 0, False
    for folder in kept_folders():
        current, size = folder == CACHE_FOLDER, _size(folder)
        used = datetime.fromtimestamp(folder.stat().st_mtime).isoformat(timespec="seconds")
        asked = args.clean and (args.all or not current)
        if asked:
            shutil.rmtree(folder, ignore_errors=True)
        removed = asked and not folder.exists()
        failed |= asked and not removed
        left += 0 if removed else size
        row = {"folder": str(folder), "bytes": size, "used": used, "current": current}
        rows.append(row | {"removed": removed})
        if args.json != "-":
            state = "removed" if removed else "could not be removed" if asked else ""
            state = state or "of this version" * current
            print(f"{size / 1e6:8.1f} MB  last used {used}  {folder}  {state}".rstrip())
    if args.json != "-":
        others = not args.clean and any(not row["current"] for row in rows)
        more = "; 'distrlcc cache --clean' removes what this version does not use" * others
        print(f"{left / 1e6:.1f} MB in all{more}")
    emit_json(args.json, {"rows": rows})
    return int(failed)


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # another process removes it
            total += path.stat().st_size
    return total
