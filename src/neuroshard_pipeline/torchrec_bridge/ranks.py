"""Processes of this host that form one group of torch.distributed, one process per rank."""

import ctypes
import datetime
import gc
import logging
import os
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PositiveInt

from neuroshard_pipeline.errors import NeuroShardError
from neuroshard_pipeline.measurement import PRELOAD
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.workers import LocalTeam, settle_on_core
from neuroshard_pipeline.workers.team import SetUp

if TYPE_CHECKING:
    import torch

#: Memory of a rank without weights, of which several plans of hundreds of tables take most.
RANK_BYTES = 3 * 2**27
#: The ranks are forked from a process that has imported TorchRec, which takes several seconds of a core.
_TORCHREC = ("torchrec", "torch.distributed.optim")


class RankError(NeuroShardError):
    """The ranks cannot start, or one of them failed."""


class RankParams(Parameters):
    """How the ranks run.

    Attributes:
        backend: backend of torch.distributed; `gloo` runs on CPUs, `nccl` on one GPU per rank. Virtual ranks
            (`torchrec_bridge.virtual`) share one GPU with `nccl`.
        threads: threads of every rank on CPUs; with 1 thread every rank is pinned to one core.
        timeout_s: seconds after which an unfinished job of the ranks, or a collective, counts as failed.
    """

    backend: Literal["gloo", "nccl"]
    threads: PositiveInt
    timeout_s: float = Field(gt=0)

    @property
    def compute_device(self) -> Literal["cuda", "cpu"]:
        """The kind of device that holds the tables."""
        return "cuda" if self.backend == "nccl" else "cpu"


@contextmanager
def rank_team(
    world_size: int, set_up: SetUp, arguments: tuple[Any, ...], params: RankParams, num_gpus: int | None = None
) -> Iterator[LocalTeam]:
    """Yield a team of one process per rank. The processes start with the first job and end with the context.

    In every process, `set_up(rank, *arguments, store_file)` runs, an importable function. It calls `join_ranks` with
    the store file and returns the function that does the jobs.

    Raises:
        RankError: the backend is nccl and the machine has fewer than `num_gpus` GPUs, by default one per rank.
    """
    import torch  # imported late, because parameters and errors are needed without it

    if params.backend == "nccl" and torch.cuda.device_count() < (num_gpus or world_size):
        need = "one GPU" if num_gpus == 1 else f"a GPU for each of {world_size} ranks"
        problem = f"backend nccl needs {need}, not {torch.cuda.device_count()}"
        raise RankError(f"{problem}; lower world_size, or set backend to gloo")
    with tempfile.TemporaryDirectory() as folder:
        team = LocalTeam(
            world_size,
            set_up,
            lambda: (*arguments, f"{folder}/{uuid.uuid4().hex}"),
            spawn=params.backend == "nccl",
            preload=[*PRELOAD, *_TORCHREC],
        )
        try:
            yield team
        finally:
            team.kill()


def join_ranks(
    rank: int,
    world_size: int,
    params: RankParams,
    store_file: str,
    ranks_per_host: int | None = None,
    backend: str | None = None,
) -> "torch.device":
    """Join the process group, in the process of a rank, and return the rank's device.

    The ranks find each other through the file `store_file`. TorchRec treats `ranks_per_host` ranks as one host, by
    default all of them. `backend` replaces that of `params`; its ranks share the first GPU.
    """
    import torch

    warnings.simplefilter("ignore")  # TorchRec, FBGEMM and torch warn about deprecated calls in their own code
    for name in ("torch.fx", "torchrec"):
        logging.getLogger(name).setLevel(logging.ERROR)
    local = ranks_per_host or world_size
    os.environ.update(LOCAL_RANK=str(rank % local), LOCAL_WORLD_SIZE=str(local))
    device = torch.device("cuda", 0 if backend else rank) if params.backend == "nccl" else torch.device("cpu")
    if backend or params.backend == "gloo":
        _keep_memory()  # gloo has buffers in host memory
    if params.backend == "nccl":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(params.threads)
        if params.threads == 1:
            settle_on_core(rank, world_size)
    torch.distributed.init_process_group(
        backend or params.backend,
        store=torch.distributed.FileStore(store_file, world_size),
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=params.timeout_s),
        device_id=None if device.type == "cpu" or backend else device,
    )
    return device


def _keep_memory() -> None:
    """Let this process reuse the memory of freed tensors, as PyTorch does on GPUs.

    By default, glibc returns the memory of large tensors to the system. Whether a step then pays for new pages depends
    on what the process did before: a lookup that writes 10 MB took 2 ms in half of the steps, and 7 ms in the others.
    """
    if (set_option := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:  # only glibc has it
        set_option(-1, -1)  # M_TRIM_THRESHOLD: freed memory stays in the process
        set_option(-4, 0)  # M_MMAP_MAX: no `mmap`


def free_memory(keep: bool) -> None:
    """Free modules, which contain reference cycles. `keep` their memory in the process: new pages take long to get."""
    gc.collect()
    if not keep and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
