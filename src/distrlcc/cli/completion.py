"""Print a script that completes our commands, flags and files in a shell.

distrlcc completion bash > ~/.local/share/bash-completion/completions/distrlcc

Flags:
    shell SHELL {bash|zsh|tcsh|fish|powershell}  bash, zsh, tcsh, fish or powershell
"""

from argparse import ArgumentParser, Namespace

import shtab

from distrlcc.cli.parser import Parser


def run(args: Namespace) -> int:
    print(shtab.complete(whole_parser(), args.shell))
    return 0


def whole_parser() -> ArgumentParser:
    """Return one parser with all commands, each of which has its own otherwise."""
    from distrlcc.cli.main import GROUPS, NAMES, about

    parser = ArgumentParser("distrlcc")
    places = {"": parser.add_subparsers()}
    for group in GROUPS:
        places[group] = places[""].add_parser(group, help=about(group)).add_subparsers()
    for command in NAMES:
        group, _, name = command.rpartition("_")
        text, own = about(command), [_own(command)]
        places[group].add_parser(name, help=text, parents=own, add_help=False)
    return parser


def _own(command: str) -> Parser:
    """Return a command's parser; a value that may be a file is completed as one."""
    from distrlcc.cli.main import find

    own, _ = find(command)
    for action in own._actions:
        if action.nargs != 0 and not action.choices:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return own
