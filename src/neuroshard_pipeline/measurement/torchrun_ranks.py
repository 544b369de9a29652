r"""The program that torchrun starts on every host: a rank that measures the collectives that a campaign orders.

    torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint <first host>:29400 --max-restarts 100 \
        -m neuroshard_pipeline.measurement.torchrun_ranks <first host>:29400

The ranks read the orders of a campaign (`torchrun_team`) from a store at that endpoint, and stay for the next campaign.
They need neither the project's conf nor its data. A rank that hangs exits. When a rank exits or dies, torchrun starts
all ranks again, up to --max-restarts times. The variable GLOO_SOCKET_IFNAME names gloo's network interface.
"""

import argparse
import faulthandler
import json
import os
import uuid
from datetime import timedelta
from typing import Any, final

import torch.distributed as dist

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement.comm_bench import CollectiveBench
from neuroshard_pipeline.measurement.hardware import require_same_machine
from neuroshard_pipeline.measurement.host_clock import Place
from neuroshard_pipeline.measurement.params import CommMeasureParams
from neuroshard_pipeline.measurement.torchrun_team import open_store
from neuroshard_pipeline.tables.samples import CollectiveSample, CommSample, ReductionSample

_LOST_ORDER_AFTER = timedelta(minutes=30)


def main() -> None:
    """Run a rank until torchrun ends it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        raise SystemExit(f"Error: torchrun must start this module on every host:\n\n{__doc__.split(chr(10) * 2)[1]}")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("endpoint", help="the --rdzv-endpoint of torchrun")
    serve(open_store(parser.parse_args().endpoint))


def serve(store: dist.Store) -> None:
    """Register this process in `store`, and then carry out every order that names it as a member; never return."""
    rank, local_world_size = int(os.environ["RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    worker = _Worker(rank, Place(int(os.environ["LOCAL_RANK"]), local_world_size), store)
    name = uuid.uuid4().hex
    number = store.add("orders", 0)
    here = {"name": name, "world_size": int(os.environ["WORLD_SIZE"]), "local_world_size": local_world_size}
    store.set(f"present/{rank}", json.dumps(here))
    while True:
        number, order = _next_order(store, number + 1)
        if name in order["members"]:
            store.set(f"answer/{number}/{rank}", json.dumps(worker.carry_out(order)))


@final
class _Worker:
    """Measures on one rank. Its bench is built again for every process group."""

    def __init__(self, rank: int, place: Place, store: dist.Store) -> None:
        self._rank = rank
        self._place = place
        self._store = store
        self._cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        self._group: str | None = None
        self._bench: CollectiveBench | None = None

    def carry_out(self, order: dict[str, Any]) -> dict[str, Any]:
        """Return the timings of an order, or why this rank is unfit. Exit if it takes longer than `timeout_s`."""
        params = CommMeasureParams(**order["params"])
        faulthandler.dump_traceback_later(params.timeout_s, exit=True)
        try:
            bench = self._bench_for(order, params)
        except MeasurementError as problem:
            return {"unfit": str(problem)}
        else:
            return {"timings": bench.measure([_sample(fields) for fields in order["samples"]])}
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _bench_for(self, order: dict[str, Any], params: CommMeasureParams) -> CollectiveBench:
        if self._bench is None or order["group"] != self._group:
            self._bench = None
            if dist.is_initialized():
                dist.destroy_process_group()
            if self._cores is not None:  # undo the pinning by an earlier bench
                os.sched_setaffinity(0, self._cores)
            require_same_machine(params.backend, order["machine"])
            meeting = dist.PrefixStore(order["group"], self._store)
            self._bench = CollectiveBench(self._rank, len(order["members"]), params, meeting, self._place)
            self._group = order["group"]
        return self._bench


def _next_order(store: dist.Store, number: int) -> tuple[int, dict[str, Any]]:
    """Wait for order `number`; return (number, order). Skip an order that its campaign numbered but never wrote."""
    while True:
        try:
            store.wait([f"order/{number}"], _LOST_ORDER_AFTER)
        except dist.DistStoreError:
            number += store.add("orders", 0) > number
        else:
            return number, json.loads(store.get(f"order/{number}"))


def _sample(fields: dict[str, Any]) -> CollectiveSample:
    if "collective" in fields:
        return ReductionSample(**fields)
    return CommSample(**fields | {name: tuple(fields[name]) for name in ("dim_sums", "start_skew_ms")})


if __name__ == "__main__":
    main()
