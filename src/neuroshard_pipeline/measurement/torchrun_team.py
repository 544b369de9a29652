"""Orders a campaign's measurements from ranks that torchrun has started on several hosts.

The ranks (`torchrun_ranks`) may die without ending the campaign. Campaign and ranks share a store with these keys:

    present/<rank>           {name, world_size, local_world_size}; a rank that is started again has a new name
    orders                   count of orders so far, which is also the number of the newest order
    order/<number>           {members, group, params, samples, machine}; members are the names of the ranks that measure
    answer/<number>/<rank>   {timings}, or {unfit}: the reason why the rank cannot measure any sample
"""

import json
import logging
import socket
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from typing import final

import torch.distributed as dist

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement.hardware import fingerprint
from neuroshard_pipeline.measurement.params import CommMeasureParams
from neuroshard_pipeline.measurement.timing import Timing
from neuroshard_pipeline.tables.samples import CollectiveSample
from neuroshard_pipeline.workers import TeamFailedError

_LOGGER = logging.getLogger(__name__)

_STORE_PREFIX = "neuroshard_pipeline"
#: torchrun and its ranks may have to import torch on busy cores first.
_CONNECT_WAIT_S = 60.0
_START_WAIT_S = 120.0
_ASK_EVERY_S = 0.02
_LOOK_EVERY_S = 1.0


@final
class TorchrunTeam:
    """A `workers.Team` of the first `size` ranks that torchrun has started.

    The team connects to torchrun when it gets its first job. A campaign with no job left does not need torchrun.

    Args:
        size: number of ranks, a multiple of `params.local_world_size`.
        samples: samples of the campaign; a job is a sequence of indices of samples.
        params: parameters of the campaign, with `local_world_size` and `torchrun_endpoint`.

    Raises:
        MeasurementError: `params.local_world_size` is missing, or `size` is not a multiple of it.
    """

    def __init__(self, size: int, samples: Sequence[CollectiveSample], params: CommMeasureParams) -> None:
        if size % _ranks_per_host(params):
            raise MeasurementError(
                f"world size {size} is not a multiple of {params.local_world_size} ranks per host; choose another "
                "local_world_size or other world sizes"
            )
        self._size = size
        self._samples = samples
        self._params = params
        self._store: dist.Store | None = None
        self._group = ""
        self._last_order: tuple[int, list[str]] | None = None
        self._gone: set[str] = set()
        self._closed = False

    def ask(self, indices: Sequence[int], timeout_s: float) -> list[list[Timing]]:
        """Measure samples one after another on all ranks; return the timings in the order of ranks.

        Raises:
            TeamFailedError: a rank died or hung, and torchrun starts all ranks again; or the team was closed.
            MeasurementError: torchrun does not answer, does not run the required ranks or does not start them again, or
                a rank cannot measure any sample.
        """
        try:
            if self._store is None:
                self._store = open_store(str(self._params.torchrun_endpoint))
            members = self._present(self._store)
            number = self._order(self._store, members, [self._samples[index] for index in indices])
            return self._gather(self._store, number, members, time.monotonic() + timeout_s + _START_WAIT_S)
        except (OSError, dist.DistError) as problem:
            what = "nothing answers" if self._store is None else f"the measurement broke off ({problem})"
            raise MeasurementError(f"{what} at {self._params.torchrun_endpoint}; {self._remedy}") from problem

    def close(self) -> None:
        """Stop waiting for answers; the ranks wait for the next campaign."""
        self._closed = True

    def kill(self) -> None:
        """Do the same as `close`, because only torchrun can end ranks."""
        self.close()

    def _present(self, store: dist.Store) -> list[str]:
        """Wait until all ranks are present and none belongs to a failed group; return their names."""
        deadline = time.monotonic() + _START_WAIT_S
        while time.monotonic() < deadline and not self._closed:
            names = self._names(store)
            if len(names) == self._size and self._gone.isdisjoint(names):
                return names
            time.sleep(_ASK_EVERY_S)
        if self._closed:
            raise TeamFailedError("the team was closed")
        raise MeasurementError(f"fewer than {self._size} ranks run at {self._params.torchrun_endpoint}; {self._remedy}")

    def _names(self, store: dist.Store) -> list[str]:
        """Names of the ranks that are present."""
        names = []
        for key in [f"present/{rank}" for rank in range(self._size)]:
            if not store.check([key]):
                break
            rank = json.loads(store.get(key))
            if rank["local_world_size"] != self._params.local_world_size or rank["world_size"] < self._size:
                found = f"{rank['world_size']} ranks, {rank['local_world_size']} per host"
                raise MeasurementError(f"torchrun has started {found}; {self._remedy}")
            names.append(rank["name"])
        return names

    def _order(self, store: dist.Store, members: list[str], samples: Sequence[CollectiveSample]) -> int:
        """Order a measurement and return the number of the order."""
        number = store.add("orders", 1)
        if (number - 1, members) != self._last_order:  # another campaign has given orders since, or the ranks are new
            self._group = uuid.uuid4().hex
        self._last_order = number, members
        store.set(f"order/{number}", _write_order(members, self._group, samples, self._params))
        return number

    def _gather(self, store: dist.Store, number: int, members: list[str], deadline: float) -> list[list[Timing]]:
        keys = [f"answer/{number}/{rank}" for rank in range(self._size)]
        next_look = time.monotonic() + _LOOK_EVERY_S
        while not store.check(keys):
            if self._closed:
                raise TeamFailedError("the team was closed")
            if time.monotonic() > next_look:
                self._look_after(store, keys, members, deadline)
                next_look = time.monotonic() + _LOOK_EVERY_S
            time.sleep(_ASK_EVERY_S)
        return [_read_answer(store.get(key)) for key in keys]

    def _look_after(self, store: dist.Store, keys: Sequence[str], members: list[str], deadline: float) -> None:
        """Raise if some rank will not answer."""
        for key in keys:
            if store.check([key]):
                _read_answer(store.get(key))  # raises for an unfit rank, for which the other ranks wait
        if self._names(store) != members:
            self._gone |= set(members)
            raise TeamFailedError(f"a rank died or did not finish within {self._params.timeout_s:g} s")
        if time.monotonic() > deadline:
            raise MeasurementError(
                f"a rank has died, and torchrun at {self._params.torchrun_endpoint} has not started a new one, perhaps "
                "because --max-restarts is reached; start torchrun again, and the campaign resumes where it stopped"
            )

    @property
    def _remedy(self) -> str:
        hosts, ranks = self._size // _ranks_per_host(self._params), self._params.local_world_size
        return (
            f"start on each of {hosts} hosts: torchrun --nnodes {hosts} --nproc-per-node {ranks} --rdzv-backend c10d "
            f"--rdzv-endpoint {self._params.torchrun_endpoint} --max-restarts 100 "
            f"-m neuroshard_pipeline.measurement.torchrun_ranks {self._params.torchrun_endpoint}"
        )


def open_store(endpoint: str) -> dist.Store:
    """The store that ranks and campaigns share, at torchrun's endpoint `<host>:<port>`.

    Raises:
        OSError: the host is unknown, or no torchrun listens at `endpoint` within `_CONNECT_WAIT_S` seconds.
    """
    host, _, port = endpoint.rpartition(":")
    deadline, is_told = time.monotonic() + _CONNECT_WAIT_S, False
    while not _listens(host, int(port), deadline):  # TCPStore's own error message is a page long
        if not is_told:
            _LOGGER.warning("nothing listens at %s; waiting up to %g s for torchrun", endpoint, _CONNECT_WAIT_S)
        is_told = True
        time.sleep(_ASK_EVERY_S)
    return dist.PrefixStore(_STORE_PREFIX, dist.TCPStore(host, int(port), is_master=False))


def _listens(host: str, port: int, deadline: float) -> bool:
    try:
        socket.create_connection((host, port), _CONNECT_WAIT_S).close()
    except OSError as problem:
        if isinstance(problem, socket.gaierror) or time.monotonic() > deadline:
            raise
        return False
    return True


def _ranks_per_host(params: CommMeasureParams) -> int:
    if params.local_world_size is None:
        raise MeasurementError("local_world_size must be given to measure across hosts")
    return params.local_world_size


def _write_order(
    members: Sequence[str], group: str, samples: Sequence[CollectiveSample], params: CommMeasureParams
) -> str:
    """An order in the format of the store; members that read a new `group` form a new process group first."""
    order = {
        "members": members,
        "group": group,
        "samples": [asdict(sample) for sample in samples],
        "params": params.model_dump(),
        "machine": fingerprint(params.backend),
    }
    return json.dumps(order)


def _read_answer(text: bytes) -> list[Timing]:
    answer = json.loads(text)
    if "unfit" in answer:
        raise MeasurementError(answer["unfit"])
    return [Timing(*timing) for timing in answer["timings"]]
