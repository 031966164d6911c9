"""Bytes that reach code which none has reached yet, for the parsers that strangers reach.

python -m tests.guided NAME SECONDS

Atheris finds them (``pip install atheris``), from those in ``tests/corpus/NAME`` and beyond, and
keeps them there; `tests/test_fuzz.py` reads all of it again. (Of the tunnel's parsers, which are
msgspec's, it sees nothing inside.)
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from tests.hostile import Parse, check

CORPUS = Path(__file__).parent / "corpus"
PLACE = ("10.0.0.1", 4000)
RAW: dict[str, Callable[[Parse], Parse]] = {
    "datagram": lambda parse: parse,
    "session": lambda parse: lambda data: parse([([(data, PLACE)], 0)]),
    "tunnel": lambda parse: lambda data: parse((data, data)),
    "policy": lambda parse: parse,
    "log": lambda parse: parse,
}
"""How a parser of `tests.test_fuzz` reads bytes."""
_LONGEST = {"datagram": 700, "session": 700, "tunnel": 300, "policy": 3000, "log": 500}
_WATCHED = ["transport", "net.receiving", "net.link_log", "policy.policy_file", "policy.spec"]
_WATCHED += ["policy.numpy_policy", "sim.link", "config", "errors"]  # nothing that numba compiles


def reader(name: str, folder: Path) -> Parse:
    """Return what reads bytes as a parser does."""
    from tests.test_fuzz import PARSERS

    return RAW[name](PARSERS[name](folder)[1])


def main() -> None:
    """Look for new bytes."""
    try:
        import atheris
    except ModuleNotFoundError:
        sys.exit("atheris is not installed: pip install atheris")
    name, seconds = sys.argv[1:]
    with atheris.instrument_imports(include=[f"distrlcc.{module}" for module in _WATCHED]):
        import tests.test_fuzz  # noqa: F401
    warnings.simplefilter("ignore")
    kept = CORPUS / name
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        read = reader(name, Path(folder))
        words = [f"-max_total_time={seconds}", f"-max_len={_LONGEST[name]}", "-timeout=20"]
        words += ["-reduce_inputs=1", f"-artifact_prefix={CORPUS}/failed-{name}-", str(kept)]
        atheris.Setup(["guided", *words], lambda data: check(read, data))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
