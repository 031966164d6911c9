"""``distrlcc``: finds the command, runs it, and turns errors into one line and an exit code.

Exit code 0 means done, 1 a difference or a failed run, 2 bad input. Exit code 3 says that other
processes are gone, 4 that they go on without this one, 130 Ctrl-C. `emulate` has its command's.
Only the command that is called is imported, so that ``distrlcc --help`` is quick.
"""

import argparse
import ast
import os
import re
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from distrlcc.cli import shared
from distrlcc.cli.parser import Parser
from distrlcc.cli.watched import on_plugin, over
from distrlcc.errors import ConfigError, DistrlccError, is_byte, printable, reading, warn_in_lines
from distrlcc.extras import naming_extras
from distrlcc.limits import limits
from distrlcc.plugins import BEFORE, blame
from distrlcc.processes import RANK_ENVIRONMENT

SECTIONS: dict[str, tuple[str, ...]] = {
    "train": ("train", "collect", "imitate", "tune", "reproduce", "import"),
    "look": ("board", "try"),
    "prove": ("evaluate", "compare", "fairness", "stress", "map", "recovery", "plot", "results"),
    "real traffic": ("send", "receive", "kernel", "emulate", "export"),
    "clusters": ("node", "cluster", "doctor"),
    "tools": ("list", "policies", "trace", "check", "metrics", "cache", "completion"),
}
COMMANDS = tuple(name for names in SECTIONS.values() for name in names)
GROUPS: dict[str, tuple[str, ...]] = {
    "check": ("sim", "link", "plugin"),
    "tune": ("pbt", "search"),
    "import": ("sb3",),
    "kernel": ("load", "status", "unload", "check"),
    "cluster": ("start", "join", "status", "stop"),
}
MODULES = {f"{group}_{name}": group for group, names in GROUPS.items() for name in names}
NAMES = [*MODULES, *(name for name in COMMANDS if name not in GROUPS)]
MODULES |= {"try": "board", "list": "names", "policies": "names", "results": "names"}
MODULES |= {"export": "exchange", "import_sb3": "exchange", "import": "exchange"}
"""Modules of several commands; another command has a module of its own."""


def main(
    arguments: Sequence[str] | None = None,
    prog: str = "distrlcc",
    commands: Sequence[str] = COMMANDS,
    package: str = "distrlcc.cli.",
) -> int:
    """Run a command line, the process's own by default; return its exit code."""
    for name, value in RANK_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and re.fullmatch(r"--local[-_]rank=\d+", words[0]):
        del words[0]  # torch.distributed.launch puts it first, and LOCAL_RANK says the same
    if arguments is None:  # what calls this function keeps its process
        BEFORE.append(on_plugin)
        warn_in_lines()
        if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
            signal.signal(signal.SIGINT, _interrupt)
    try:
        limits()  # refused before anything starts
        gone = "the folder that this runs in is gone", "; change to one that is there"
        with reading(ConfigError, *gone):  # torch ends the process there, over another file
            os.getcwd()
        with naming_extras():
            code = _run(words, prog, commands, package)
        print(end="", flush=True)  # at Python's own end it is too late for a line of ours
        return code
    except DistrlccError as error:
        print(f"distrlcc: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("distrlcc: interrupted", file=sys.stderr)
        return 130
    except (Exception, SystemExit) as error:
        known = _end(error)
        if known is None:
            raise
        return known
    finally:
        _leave(own=arguments is None)


_FRAGILE = "importlib._bootstrap>", "llvmlite/binding/executionengine.py", "logging/__init__.py"


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but later where a library dies of it, or swallows it."""
    again = signal.getitimer(signal.ITIMER_REAL)[0] > 0  # Ctrl-C a second time
    while frame is not None and not again:
        if frame.f_code.co_filename.endswith(_FRAGILE):
            signal.signal(signal.SIGALRM, _interrupt_again)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            return
        frame = frame.f_back
    signal.setitimer(signal.ITIMER_REAL, 0)
    raise KeyboardInterrupt


def _interrupt_again(number: int, frame: FrameType | None) -> None:
    """Try it again: the library may have returned."""
    signal.signal(number, signal.SIG_DFL)  # as others want it
    signal.raise_signal(signal.SIGINT)


def _leave(*, own: bool) -> None:
    if own:
        signal.setitimer(signal.ITIMER_REAL, 0)  # see `_interrupt`
    try:
        print(end="", flush=True)
    except OSError:  # Python would try it again, and end with a code of its own
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    over()


def _end(error: BaseException) -> int | None:
    """Say in one line what ended a command, if it is known; return the exit code."""
    text = blame(error)
    if not text and isinstance(error, OSError | SystemExit):  # as where help was asked for
        try:
            print(end="", flush=True)
        except OSError as unwritten:
            error, unwritten.filename = unwritten, "standard output"
    cause = error.__context__ if isinstance(error, SystemExit) else error  # rich exits
    if not text and isinstance(cause, BrokenPipeError):
        return 141  # the reader of our output went away, as `head` does
    if text := text or _known(error):
        print(f"distrlcc: error: {text}", file=sys.stderr)
    return 2 if text else None


def _known(error: BaseException) -> str:
    """Return the line of an error that a user can mend; empty: it is a fault of ours."""
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}; ask for less"
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return printable(f"{place}{error.strerror or error}")
    if isinstance(error, UnicodeEncodeError) and is_byte(
        error
    ):  # a name of bytes, which stand for themselves
        bad, words = error.object[error.start], re.split(r'["\n]', error.object)
        name = next(word for word in words if bad in word)
        return printable(f"{name!r} is no text in UTF-8; rename that file or folder")
    if isinstance(error, ValueError) and "null byte" in str(error):
        return "a path holds a null byte; expected a file name"
    if isinstance(error, ValueError) and str(error).startswith("Key backend:"):
        return printable(f"MPLBACKEND in the environment: {error}")
    return ""


def _run(words: list[str], prog: str, commands: Sequence[str], package: str) -> int:
    parser = Parser(prog, "Reinforcement learning for network congestion control.")
    text = "show the versions of distrlcc and of what it runs on"
    parser.add_argument("--version", action=_Version, nargs=0, help=text)
    sections = SECTIONS if commands is COMMANDS else {"commands": commands}
    name = command = parser.choose(words, sections, lambda name: about(name, package))
    rest = words[words.index(command) + 1 :]
    if commands is COMMANDS and command in GROUPS:
        group, names = Parser(f"{prog} {command}", about(command)), {"commands": GROUPS[command]}
        choice = group.choose(rest, names, lambda name: about(f"{command}_{name}"))
        rest = rest[rest.index(choice) + 1 :]
        name = f"{command}_{choice}"
    own, run = find(name, prog, package)
    return run(own.read(rest))


class _Version(argparse.Action):
    """Prints the versions that matter, which takes time that other commands need not spend."""

    def __call__(self, parser: argparse.ArgumentParser, *others: object, **more: object) -> None:
        from distrlcc.runs.identity import package_version, package_versions

        found = {**package_versions(), "ray": package_version("ray"), "kernel": os.uname().release}
        print("\n".join(f"{name} {version}" for name, version in found.items()))
        parser.exit()


def find(
    name: str, prog: str = "distrlcc", package: str = "distrlcc.cli."
) -> tuple[Parser, Callable[[Namespace], int]]:
    """Return a command's parser, and the function that runs it, which imports its module.

    A module of one command has `run`, and its docstring is the help. A module of several has
    `run_NAME` of each, with the help as its docstring. Help is read without an import, which may
    take long.
    """
    module, own, source = _home(name, package)
    tree = ast.parse(source)
    functions = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}
    text = ast.get_docstring(functions[own] if own != "run" else tree) or ""
    rows = vars(shared) | {
        ast.unparse(each.targets[0]): each.value.value
        for each in tree.body
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant)
    }
    text = re.sub(r"^    \$(\w+)$", lambda found: str(rows[found[1]]).strip("\n"), text, flags=re.M)
    parser = Parser(f"{prog} {name.replace('_', ' ')}", text, module)
    return parser, lambda args: int(getattr(import_module(module), own)(args))


def about(name: str, package: str = "distrlcc.cli.") -> str:
    """Return the sentence that a command's or a group's help begins with."""
    _, own, source = _home(name, package)
    text = source if own == "run" or name in GROUPS else source.partition(f"def {own}(")[2]
    return text.split('"""')[1].partition("\n")[0]


def _home(name: str, package: str) -> tuple[str, str, str]:
    """Return a command's module, its function there and the module's source."""
    home = MODULES.get(name, name)
    found = find_spec(f"{package}{home}")
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"no module {package}{home}", name=f"{package}{home}")
    own = "run" if home == name else f"run_{name.removeprefix(f'{home}_')}"
    return found.name, own, Path(found.origin).read_text("utf-8")
