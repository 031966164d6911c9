"""The rank and size that another launcher gave this process, by its environment.

torchrun and Kubernetes' PyTorchJob set four variables; Slurm and the MPIs name two of their own.
"""

from collections.abc import Mapping

from distrlcc.errors import ConfigError

_FOUR = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_OTHERS = (
    ("mpirun", *(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "RANK"))),
    ("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALRANKID"),
    ("mpirun_rsh", *(f"MV2_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "RANK"))),
    ("jsrun", *(f"JSM_NAMESPACE_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "RANK"))),
    ("flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "FLUX_TASK_RANK"),
    ("srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_ID"),
    ("PMI", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_RANK"),
)
"""Launchers; their names of rank, count and local rank; a name that only a started task has. Slurm
starts the daemons of the MPIs before their tasks, which inherit its numbers."""


def launched(environment: Mapping[str, str]) -> dict[str, str] | None:
    """Return RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCAL_RANK; None: alone; ConfigError."""
    found = {name: environment[name] for name in (*_FOUR, "LOCAL_RANK") if environment.get(name)}
    source = "the environment"
    # A master alone is of whoever starts the processes, as in a container.
    if not found.keys() & {"RANK", "WORLD_SIZE"}:
        for launcher, rank, size, local, started in _OTHERS:
            if environment.get(started) and environment.get(size, "1") != "1":
                source = launcher
                found |= {"RANK": environment.get(rank, ""), "WORLD_SIZE": environment[size]}
                found.setdefault("LOCAL_RANK", environment.get(local, "0"))
                break
        else:
            return None
    if missing := [name for name in _FOUR if not found.get(name)]:
        have = [name for name in _FOUR if found.get(name)]
        raise ConfigError(
            f"{source} sets {', '.join(have)} but not {', '.join(missing)}: each process would "
            "train alone; set all four for the ranks of one run, or none"
        )
    found.setdefault("LOCAL_RANK", "0")
    for name in (*_FOUR[:2], _FOUR[3], "LOCAL_RANK"):
        if not found[name].isdecimal():
            raise ConfigError(f"{name} is {found[name]!r} in {source}: expected a whole number")
    if not 0 < int(found["MASTER_PORT"]) < 1 << 16:
        raise ConfigError(f"MASTER_PORT is {found['MASTER_PORT']} in {source}: expected 1 to 65535")
    if found["WORLD_SIZE"] == "1" and "TORCHELASTIC_RUN_ID" not in environment:
        return None
    if int(found["RANK"]) >= int(found["WORLD_SIZE"]):
        raise ConfigError(
            f"RANK is {found['RANK']} in {source}: expected less than WORLD_SIZE, which is "
            f"{found['WORLD_SIZE']}"
        )
    return found
