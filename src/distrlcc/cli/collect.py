"""Collect an expert's trajectories as a data set, for imitation or offline learning.

distrlcc collect oracle --suite random --steps 1000000 --out data/oracle
distrlcc collect cubic,bbr,vegas,copa --suite cellular --out data/best-of-four
distrlcc collect cubic --episodes 64 --out data/cubic --set env.action=fast-rate

Flags, in any order:
    scheme SCHEME  the expert: oracle, cubic, bbr and so on; of several (cubic,bbr,copa) each link
        has the best
    --scheme/--expert {gone}  name the expert first, as in 'collect oracle'
    --out! DIR {path}  a new folder
    --suite SUITE {alone} sets env.suites  a suite, TOML file or folder of traces (default: the
        recipe's suites)
    --steps N {1..} sets steps  whole episodes up to N steps (default: 1000000)
    --episodes N {1..} sets episodes  N episodes
    --num-envs N {1..} sets num_envs  episodes side by side (default: 256)
    --seed N {0..} sets seed  seed of the links
    --disturb SHARE {0.0..0.5} sets disturb  share of random actions, which the oracle undoes
        (default: 0.1 for it)
    --split {train|validation|test} sets split  default: train
    --recipe RECIPE =quickstart  recipe with the observations, actions and reward
    --set/assignments* KEY=VALUE  change a key of the environment, such as env.step_ms=20
    --shard-steps N {1..} sets shard_steps  steps in a file (default: 262144)

Rules:
    --steps: not with --episodes
"""

from argparse import Namespace

from distrlcc.cli.output import note
from distrlcc.cli.parser import assignments
from distrlcc.config import override
from distrlcc.data.writer import check_vacant
from distrlcc.errors import counted
from distrlcc.recipes.registry import recipe
from distrlcc.runs.collect_data import CollectConfig, ExpertRounds, collect_data
from distrlcc.runs.progress import Progress


def alone(text: str) -> list[str]:
    return [text]


def run(args: Namespace) -> int:
    settings = ["disturb=0.1"] if args.scheme == "oracle" else []
    settings += ["steps=0"] if args.episodes else []
    began = CollectConfig(args.scheme, env=recipe(args.recipe).env)
    config = override(began, [*settings, *assignments(args)])
    check_vacant(args.out)
    rounds = ExpertRounds(config)
    with Progress(config.steps or config.episodes * (config.episode_steps - 1)) as progress:
        manifest = collect_data(rounds, config, args.out, progress)
    if isinstance(manifest, int):
        note("distrlcc: stopped; nothing was kept")
        return 128 + manifest
    size = sum(shard.steps_bytes + shard.episodes_bytes for shard in manifest.shards)
    print(
        f"{args.out}: {manifest.steps} steps in {manifest.episodes} episodes of {config.scheme}, "
        f"{counted(len(manifest.shards), 'shard')}, {size / 1e6:.1f} MB"
    )
    return 0
