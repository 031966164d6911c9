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
    from distrlcc.cli.main import COMMANDS, GROUPS, about

    parser = ArgumentParser("distrlcc")
    commands = parser.add_subparsers()
    for command in COMMANDS:
        text = about(command)
        if command not in GROUPS:
            commands.add_parser(command, help=text, parents=[_own(command)], add_help=False)
            continue
        group = commands.add_parser(command, help=text).add_subparsers()
        for each in GROUPS[command]:
            text, parents = about(f"{command}_{each}"), [_own(f"{command}_{each}")]
            group.add_parser(each, help=text, parents=parents, add_help=False)
    return parser


def _own(command: str) -> Parser:
    """Return a command's parser; a value that may be a file is completed as one."""
    from distrlcc.cli.main import find

    own, _ = find(command)
    for action in own._actions:
        if action.nargs != 0 and not action.choices:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return own
