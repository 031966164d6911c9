"""What ``train`` and ``node`` are told: which run, and how processes work together."""

from argparse import Namespace
from dataclasses import fields, replace
from typing import TYPE_CHECKING, TypeVar

from distrlcc.cli.parser import assignments
from distrlcc.cli.watched import owns_process
from distrlcc.config import from_toml, override, read_toml, to_toml, toml_differences
from distrlcc.errors import ConfigError
from distrlcc.filesystems import absolute
from distrlcc.net.emulator.namespace import own_loopback
from distrlcc.recipes.registry import RECIPES, recipe
from distrlcc.runs.options import GroupOptions, RunOptions
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_directory import RunDirectory, resumed
from distrlcc.runs.trackers import Trackers
from distrlcc.storage import say, stored_runs

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

C = TypeVar("C", bound="DataclassInstance")


def run_config(args: Namespace) -> RunConfig:
    """Return the configuration that the arguments say."""
    settings = assignments(args)
    if args.resume:
        if args.out is None:
            names = stored_runs(args.storage)[:10] if args.storage else []
            stored = f"; the storage has {', '.join(names)}" if names else ""
            raise ConfigError(f"--resume needs --out DIR, the run to go on with{stored}")
        place = run_options(args).place("")
        if place is not None and not (args.out / "config.toml").exists():
            began = from_toml(
                RunConfig, place.read_config(), source=f"{place}, config.toml", note=say
            )
            began = replace(began, start_from="")  # its checkpoint has newer weights
        else:
            began = RunDirectory.read_config(args.out, RunConfig, say)
        if args.recipe is None:
            return resumed(override(began, settings), args.out)
        given = replace(recipe(args.recipe), start_from=began.start_from)
        config = resumed(override(given, settings), args.out)
        if changed := toml_differences(to_toml(began), to_toml(config)):
            say(f"{args.out} had other settings (old != new): {'; '.join(changed)}")
        return config
    if args.recipe is None:
        taken = [word for word in args.assignments if "=" not in word]
        why = "expected a name of 'distrlcc list recipes'"
        flag = next((f for f in ("wandb", "mlflow") if getattr(args, f) in RECIPES), "")
        if flag:
            why = f"{getattr(args, flag)!r} was taken for --{flag}'s value: put RECIPE before it"
        elif taken:
            why = f"{taken[-1]!r} was taken for one of --set's KEY=VALUE: put RECIPE before --set"
        raise ConfigError(f"no recipe; {why}")
    return override(recipe(args.recipe), settings)


def run_options(args: Namespace) -> RunOptions:
    """Return where a run writes."""
    given = vars(args)
    args.storage = absolute(given.get("storage", ""))
    args.trackers = Trackers(given.get("wandb", ""), given.get("mlflow", ""))
    return made(RunOptions, args)


def group_options(args: Namespace) -> GroupOptions:
    """Return how a run's processes work together."""
    args.elastic = args.elastic and args.gpu < 0  # NCCL ends a process whose peer died
    return made(GroupOptions, args)


def close_loopback(why: str = "") -> None:
    """Let no other user of this machine reach the ports of the run that begins, or say why not."""
    if owns_process() and (why := why or own_loopback()):
        say(
            f"other users of this machine reach this run's ports on loopback, as it has no network "
            f"of its own ({why}); docs/security.md says what they can do"
        )


def made(kind: type[C], args: Namespace) -> C:
    """Return a data class whose fields are those of the arguments that have their names."""
    names = (field.name for field in fields(kind))
    return kind(**{name: getattr(args, name) for name in names if name in args})


def read_nodes(path: str) -> list[list[int | str]]:
    """Read each machine's links from a TOML file, as which DistRLCC's ``NODES = [[…]]`` reads."""
    expected = "expected a file of nodes = [[0, 1], [2]], a list for each machine"
    data = {key.lower(): value for key, value in read_toml(path, f"; {expected}").items()}
    nodes = data.get("nodes") if set(data) == {"nodes"} else None
    if not isinstance(nodes, list) or not all(isinstance(node, list) for node in nodes):
        raise ConfigError(f"{path}: {expected}")
    for entry in (entry for node in nodes for entry in node):
        if isinstance(entry, bool) or not isinstance(entry, int | str):
            raise ConfigError(
                f"{path}: {entry!r} is not a link; expected Indigo's link id or a name, such as 3 "
                'or "random"'
            )
    return nodes
