"""Arguments and sentences that ``evaluate``, ``fairness`` and ``recovery`` have in common."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from distrlcc.errors import ConfigError

if TYPE_CHECKING:
    from distrlcc.evaluate.contender import Contender


def counted(links: Sequence[object]) -> str:
    """Return their number with its noun: ``1 link``, ``12 links``."""
    return f"{len(links)} link{'s' * (len(links) != 1)}"


def names_in(text: str) -> list[str]:
    """Return the names of a list with commas, each once."""
    return list(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))


def add_contenders(
    parser: argparse.ArgumentParser, against: str, *, real: str | None = None
) -> None:
    """Add the arguments that `contenders_of` reads.

    Args:
        parser: The command's.
        against: The schemes by default.
        real: Those of real packets by default, if the command has them; `against` is None then.
    """
    parser.add_argument("policies", nargs="*", metavar="POLICY", help="policy files, or runs")
    more = "" if real is None else f"; of real packets {real}"
    parser.add_argument(
        "--against",
        default=against if real is None else None,
        metavar="A,B,…",
        help=f"schemes (default: {against}{more})",
    )
    parser.add_argument(
        "--prefer",
        default="",
        metavar="P,…",
        help="0: throughput, 1: delay, for policies trained with preferences; each is measured "
        "once for each (default: the policy's own)",
    )


def contenders_of(args: argparse.Namespace, *, real: bool = False) -> list[Contender]:
    """Return the policies and schemes that the arguments name.

    Args:
        args: As `add_contenders` adds them.
        real: They send real packets.
    """
    from distrlcc.evaluate.contender import contender_from_file, contender_from_scheme

    schemes = names_in(args.against)
    contenders: list[Contender] = []
    for path, prefer in product(args.policies, _preferences(args)):
        taken = {*schemes, *(contender.name for contender in contenders)}
        contenders.append(contender_from_file(path, taken, prefer))
    contenders += [contender_from_scheme(name, real=real) for name in schemes]
    if not contenders:
        raise ConfigError("nothing to evaluate; give a POLICY file or --against SCHEMES")
    return contenders


def _preferences(args: argparse.Namespace) -> list[float | None]:
    """Return the preferences of ``--prefer``; None: the policies' own.

    Raises:
        ConfigError: It is no list of numbers from 0 to 1.
    """
    words = names_in(args.prefer)
    if not words:
        return [None]
    try:
        values = [float(word) for word in words]
    except ValueError:
        values = [-1.0]
    if not all(0.0 <= value <= 1.0 for value in values):
        raise ConfigError(f"--prefer {args.prefer}: expected numbers from 0 to 1, as in 0,0.5,1")
    if not args.policies:
        raise ConfigError("--prefer is for a POLICY; there is none")
    return list(dict.fromkeys(values))
