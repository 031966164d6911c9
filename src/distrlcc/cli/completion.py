"""Print a script with which a shell completes our commands and flags.

distrlcc completion bash > ~/.local/share/bash-completion/completions/distrlcc
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import shtab

from distrlcc.cli.parser import Parser


def add_arguments(parser: Parser) -> None:
    parser.add("shell SHELL", "which", choices=tuple(shtab.SUPPORTED_SHELLS))


def run(args: Namespace) -> int:
    """Print it."""
    print(shtab.complete(whole_parser(), args.shell))
    return 0


def whole_parser() -> ArgumentParser:
    """Return one parser with all commands, each of which has its own otherwise."""
    from distrlcc.cli.main import COMMANDS, GROUPS, find

    parser = ArgumentParser("distrlcc")
    commands = parser.add_subparsers()
    for command, text in COMMANDS.items():
        if command not in GROUPS:
            own, _ = find(command)
            commands.add_parser(command, help=text, parents=[own], add_help=False)
            continue
        group = commands.add_parser(command, help=text).add_subparsers()
        for name, said in GROUPS[command].items():
            own, _ = find(f"{command}_{name}")
            group.add_parser(name, help=said, parents=[own], add_help=False)
    return parser
