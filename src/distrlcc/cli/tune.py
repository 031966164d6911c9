"""Tune recipes: population-based training, and search with Optuna's samplers."""

import os
import uuid
from argparse import Namespace
from dataclasses import replace

from distrlcc.cli.output import command_line, note
from distrlcc.cli.parser import assignments
from distrlcc.cli.run_arguments import made
from distrlcc.config import override
from distrlcc.errors import ConfigError, DistrlccError
from distrlcc.filesystems import absolute, storage_filesystem
from distrlcc.recipes.registry import recipe
from distrlcc.tune.space import check_space
from distrlcc.tune.tune_config import PBTConfig, SearchConfig, TuneConfig, steps_per_update

_TUNER = """
    recipe? RECIPE  see 'distrlcc list recipes'
    --set/assignments* KEY=VALUE  change a key of the recipe
    --updates N {1..}  updates of one member (default: the recipe's total_steps)
    --cpus-per-trial C {0.01..10000}  cores of one member, may be a fraction
    --cpus C {1..}  cores of this machine that are used (default: all)
    --address HOST:PORT =  a Ray cluster's head, or auto (default: a Ray of its own on this machine)
    --seed N {int} sets seed  of all that is drawn at random
    --out DIR {path}  folder (default: runs/tune-…)
    --resume  go on with the tuner in --out
    --metric {reward|utilisation|queueing_delay|loss} =reward  what is compared, a mean over
        held-out links
    --mode {max|min}  default: max, for queueing_delay and loss min
    --storage DIR|URL =  where members' checkpoints go: an NFS folder, s3://bucket/path … (default:
        in --out)
    --keep-checkpoints/keep N {int} =4  checkpoints kept of each member
    --stop REF =  a function of your own, ./file.py:name: takes a report, says that a member is done
    --failures N {int} =2  times that a member that failed is started again

"""


def run_pbt(args: Namespace) -> int:
    """Train a population whose worst members copy the best and change their values (PBT, Ray Tune).

    distrlcc tune pbt quickstart --mutate ppo.lr=loguniform:1e-5:1e-2
    distrlcc tune pbt quickstart --updates 200 --synch --mutate ppo.lr=loguniform:1e-5:1e-2
    distrlcc tune pbt quickstart --mutate ppo.gamma=uniform:0.9:0.99 ppo.num_epochs=int:1:6
    distrlcc tune pbt --resume --out runs/tune-quickstart-20260131-120000

    Flags:
        $_TUNER
        --mutate/space* KEY=DIST  what is tuned: uniform:a:b, loguniform:a:b, int:a:b or
            choice:x,y,…
        --population N {int} =8  members
        --interval T {float} =20.0  between two looks at a member, in --time-attr
        --time-attr {update|steps|training_iteration|time_total_s} =update  what progress is
            measured by
        --report-every N {int}  updates between two reports (default: the interval where that is in
            updates, or 20)
        --burn-in T {float} =0.0  before the first look, in --time-attr (default: 0)
        --quantile Q {float} =0.25  share of the worst, which copy as many of the best; 0 to 0.5
        --resample P {float} =0.25  probability of a new draw of a value instead of a perturbed one
        --factors F,F {factors} =1.2,0.8  a number is multiplied with one of them
        --explore REF =  a function of your own that takes the perturbed values by key and returns
            them
        --synch  look at all members at the same time
        --no-log-config  write no pbt_global.txt of Ray's

    Rules:
        --cpus: not with --address; it is of a Ray of its own, leave it out with --address
    """
    return _run_tuner(args, "pbt")


def _pbt_config(args: Namespace) -> PBTConfig:
    """Return the settings of a population; the interval of its reports is set where none is."""
    pbt = made(PBTConfig, args)
    if args.report_every is None and args.time_attr != "update":
        args.report_every = 20
    elif args.report_every is None:
        if args.interval < 1 or not args.interval.is_integer():
            raise ConfigError(
                f"--interval {args.interval:g}: expected a whole number of updates, 1 or more"
            )
        args.report_every = int(args.interval)
    return pbt


def factors(text: str) -> tuple[float, float]:
    try:
        first, second = (float(word) for word in text.split(","))
    except ValueError:
        raise ConfigError(f"--factors {text!r}: expected two numbers, as in 1.2,0.8") from None
    return first, second


def run_search(args: Namespace) -> int:
    """Search for a recipe's values with Optuna's samplers, and stop bad trials early (ASHA).

    distrlcc tune search quickstart --trials 16 --updates 200 --search ppo.lr=loguniform:1e-5:1e-2
    distrlcc tune search quickstart --sampler gp --search network.hidden=choice:[32,32],[64,64]
    distrlcc tune search --resume --out runs/tune-quickstart-20260131-120000

    Flags:
        $_TUNER
        --search/space* KEY=DIST  what is tuned: uniform:a:b, loguniform:a:b, int:a:b or
            choice:x,y,…
        --trials N {int} =16
        --sampler {tpe|random|cmaes|gp|qmc|nsga2|nsga3} =tpe  Optuna's sampler
        --report-every N {int} =20  updates between two reports
        --no-asha  run every trial to its end
        --grace N {int}  updates that every trial has (default: two reports)
        --reduction R {float} =3.0  at each of ASHA's rungs one of R trials goes on
        --brackets N {int} =1
        --concurrent N {int} =0  trials at the same time (default: as many as there are cores for)

    Rules:
        --cpus: not with --address; it is of a Ray of its own, leave it out with --address
    """
    return _run_tuner(args, "search")


def _tune_config(args: Namespace, command: str) -> TuneConfig:
    """Return the new tuner that the arguments describe; a member's length is never a time."""
    args.pbt = args.search = None
    if command == "pbt":
        args.pbt = _pbt_config(args)
    else:
        args.grace = 2 * args.report_every if args.grace is None else args.grace
        args.search = made(SearchConfig, args)
    # What each member trains.
    if args.recipe is None:
        raise ConfigError("no recipe; expected a name of 'distrlcc list recipes', before --set")
    settings = assignments(args)
    lost = {"max_seconds": "a member lasts for --updates, not for a time"}
    lost |= {"total_steps": "--updates says that"} if args.updates is not None else {}
    lost |= {text.partition("=")[0].strip(): "it is tuned" for text in args.space}
    for key in (text.partition("=")[0].strip() for text in settings):
        if key in lost:
            raise ConfigError(f"--set {key} would be ignored: {lost[key]}; leave it out")
    config = replace(override(recipe(args.recipe), settings), max_seconds=0.0)
    if args.updates is not None:
        config = replace(config, total_steps=args.updates * steps_per_update(config))
    args.run, args.space = config, tuple(args.space)
    args.name = f"{config.recipe}-{uuid.uuid4().hex[:8]}" if args.storage else "members"
    args.storage = absolute(args.storage)
    args.mode = args.mode or ("min" if args.metric in ("queueing_delay", "loss") else "max")
    args.cpus_per_trial = _core_share(args, args.pbt)
    return made(TuneConfig, args)


def _core_share(args: Namespace, pbt: PBTConfig | None) -> float:
    """Return the cores of a member, so that a population runs at once on this machine.

    If all members are looked at together, Ray ends each one's process at each look. Fewer processes
    that take turns then cost less.
    """
    if args.cpus_per_trial is not None:
        return float(args.cpus_per_trial)
    if pbt is None or pbt.synch or args.address:
        return 1.0
    cores = args.cpus or len(os.sched_getaffinity(0))
    return max(int(1e3 * min(1.0, cores / pbt.population)) / 1e3, 0.01)


def _run_tuner(args: Namespace, command: str) -> int:
    # Find what does not fit before what takes seconds to import.
    config = _resumed(args, command) if args.resume else _tune_config(args, command)
    check_space(config)
    from distrlcc.tune.outcome import REPORTS, write_outcome
    from distrlcc.tune.tuner import open_folder, prepare

    prepare(config)
    from distrlcc.tune.ray_tune import run

    if config.storage and not args.resume:
        storage_filesystem(config.storage)
    # Run, and write what was found.
    with open_folder(args.out, config, resume=args.resume) as folder:
        try:
            signal, failures = run(
                config, folder, address=args.address, cpus=args.cpus, resume=args.resume, show=note
            )
        except DistrlccError:
            if not args.resume and not (folder.path / REPORTS).exists():
                folder.discard()
            raise
        draw, told = not signal, command_line()
        text = write_outcome(folder.path, config, failures, draw=draw, command=told)
    # Say how it ended.
    if text is not None:
        print(text, end="")
    if signal:
        goes_on = f"distrlcc {config.command} --resume --out {folder.path}"
        note(f"distrlcc: stopped; saved. Go on with: {goes_on}")
        return 128 + signal
    if text is None:
        reasons = sorted(set(failures.values()))
        raise ConfigError(f"every member failed: {'; '.join(reasons) or 'for no known reason'}")
    for name in ("best.toml", "policy.safetensors", "population.png", "tune.html", "table.txt"):
        print(f"{name.partition('.')[0]}: {folder.path / name}")
    print(f"summary: {folder.path / 'summary.json'}")
    return 1 if failures else 0


def _resumed(args: Namespace, command: str) -> TuneConfig:
    """Return the configuration of the tuner in ``--out``; nothing else may be given."""
    from distrlcc.tune.tuner import read_config

    if args.out is None:
        raise ConfigError("--resume needs --out DIR, the tuner to go on with")
    if args.recipe is not None or args.flags - {"--resume", "--out", "--address", "--cpus"}:
        raise ConfigError(
            f"--resume takes all else from {args.out / 'config.toml'}: give only --out (and "
            "--address or --cpus)"
        )
    config = read_config(args.out)
    if config.command != f"tune {command}":
        raise ConfigError(f"{args.out} is of 'distrlcc {config.command}': resume it with that")
    return config
