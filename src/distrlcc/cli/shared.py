"""Rows of flags that several commands have, as ``$NAME`` in the help of these; see `parser`."""

JSON = "    --json FILE {json}  write all figures as JSON; - for stdout"

ALWAYS = """
    --always  let the policy send on all paths (default: CUBIC's rule takes over if the RTT is under
        2 ms, or the delay is noisy)
"""

PREFER = """
    --prefer P {0.0..1}  0: throughput, 1: delay, for a policy trained with preferences (default:
        its own)
"""

CONTENDERS = f"""
    senders* SENDER  policy files, runs, shipped policies, or schemes
    --policy/--scheme {{gone}}  policies stand first, schemes in a list: one --against cubic,bbr
    --prefer P,… {{0.0..1}} =  0: throughput, 1: delay, for policies trained with preferences; each
        is measured once for each (default: the policy's own)
{ALWAYS}"""

CONTENDER = f"""
    sender SENDER  a policy file, a run, a shipped policy, or a scheme
    --processes N {{1..512}}  processes of this machine (default: one for each core)
{PREFER}{ALWAYS}"""

TRACKERS = """
    --wandb? PROJECT = or auto  log to Weights & Biases (default: WANDB_PROJECT, or distrlcc)
    --mlflow? URI = or auto  log to MLflow (default: MLFLOW_TRACKING_URI, or mlflow.db here)
"""

SEED = "    --seed N {int} sets seed  of all random draws"

RUN = f"""
    recipe? RECIPE  see 'distrlcc list recipes'
    --set/assignments* KEY=VALUE  change a key of the configuration, such as ppo.lr=3e-4
    --out DIR {{path}}  run directory (default: runs/…)
    --resume  go on with the run in --out
    --storage URL =  keep a durable copy in a folder, s3://bucket/path or the like; --resume fetches
        a run from there that is not on this machine
{SEED}
    --world {{simulated|emulated|kernel}} sets env.world  where the links are: in the simulator, or
        emulated for real packets in real time, our own over UDP or the kernel's TCP
    --no-tensorboard  write no event files
{TRACKERS}"""

GROUP = """
    --no-elastic  end all processes when one of them is gone
    --restarts K {0..} =0  restart dead processes up to K times (with --no-elastic: all of them,
        from the last checkpoint)
    --gpu G {int} =-1  first GPU, one for each process (default: -1, the CPU); implies --no-elastic
    --interface NAME =  network interface (default: the one that reaches the master)
    --join-timeout/join_seconds S {1.0..} =120.0  how long to wait for the master and the others, s
    --debug sets distributed.sync_check_every=1  compare all weights after every update
"""
