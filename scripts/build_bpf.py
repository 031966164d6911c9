"""Builds the kernel's program: ``python scripts/build_bpf.py [--check]``.

Needs clang-14, llvm-14 (llvm-strip) and libbpf's headers: ``apt-get install clang-14 llvm-14
libbpf-dev``. ``--check`` builds into a temporary folder and compares with what is committed.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from distrlcc.policy.kernel_layout import OBJECT, ONE, fixed

FOLDER = Path(__file__).parents[1] / "src/distrlcc/net/kernel"
SOURCE, TABLES = "distrlcc.bpf.c", "tables.h"
COMPILER, STRIP = "clang-14", "llvm-strip-14"

LN2, LOG2_E = round(np.log(2) * 2**30), round(ONE / np.log(2))
FUNCTIONS = {
    # Of 1 to 2 in steps of 1/1024, and of 0 to 8 in steps of 1/256.
    "__s32 log2": fixed(np.log2(1 + np.arange(1026) / 1024)),
    "__s32 tanh": fixed(np.tanh(np.arange(2050) / 256)),
    # Of 0 to 1 in steps of 1/256, 30 bits after the point.
    "__u32 exp2": np.minimum(fixed(2 ** (np.arange(258) / 256), 1 << 30), 2**32 - 1),
}
"""The tables by their types and names; a last element stands for what an index never reaches."""


def tables() -> str:
    """Return the tables of logarithms, tanh and powers as C."""
    lines = [
        "/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */",
        "/* Written by scripts/build_bpf.py. */",
        f"#define LN2 {LN2}LL",
        f"#define LOG2_E {LOG2_E}LL",
    ]
    for name, values in FUNCTIONS.items():
        lines.append(f"static const {name}_table[{len(values)}] = {{")
        rows = (values[first : first + 10] for first in range(0, len(values), 10))
        lines += ["\t" + ", ".join(map(str, row)) + "," for row in rows]
        lines.append("};")
    return "\n".join(lines) + "\n"


def build(target: Path) -> None:
    """Compile the committed sources to a stripped object.

    Raises:
        OSError: There is no compiler.
        subprocess.CalledProcessError: It found an error.
    """
    # Paths of sources go into the object: they are made those of no folder.
    flags = ["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Werror", "-D__TARGET_ARCH_x86"]
    flags += ["-fdebug-compilation-dir=.", f"-ffile-prefix-map={FOLDER}=."]
    include = ["-I", ".", "-idirafter", "/usr/include/x86_64-linux-gnu"]
    source = FOLDER / SOURCE
    command = [COMPILER, *flags, *include, "-c", SOURCE, "-o", str(target)]
    subprocess.run(command, check=True, timeout=120, cwd=source.parent)
    subprocess.run([STRIP, "-g", str(target)], check=True, timeout=60)


def differences() -> list[str]:
    """Return which committed files are not what the sources give."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / OBJECT
        build(target)
        found = [OBJECT] if target.read_bytes() != (FOLDER / OBJECT).read_bytes() else []
    return found + ([TABLES] if tables() != (FOLDER / TABLES).read_text() else [])


def main() -> None:
    """Build, or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        if found := differences():
            raise SystemExit(f"not as built: {', '.join(found)}; run scripts/build_bpf.py")
        return
    (FOLDER / TABLES).write_text(tables())
    build(FOLDER / OBJECT)


if __name__ == "__main__":
    main()
