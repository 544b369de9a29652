r"""A campaign of collectives between ranks on several hosts, which torchrun starts.

Run on every host:

    torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint <first host>:29500 --max-restarts 3 \
        -m neuroshard_pipeline.measurement.torchrun_campaign \
        --samples comm_samples.parquet --params conf/base/parameters_measure.yml --out data/04_feature/comm_across_hosts

Rank 0 alone reads the samples (`augment.comm_samples`; those of torchrun's world size are measured) and writes: raw
shards below `<out>/<hosts>x<ranks per host>/`, and at the end `comm_costs.parquet` and `noise_floor.json` beside them.
A run that is killed, or restarted by torchrun because a rank died, goes on where it stopped. gloo takes the network
interface that GLOO_SOCKET_IFNAME names.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

import pandas as pd
import torch.distributed as dist
from omegaconf import OmegaConf

from neuroshard_pipeline.errors import MeasurementError, NeuroShardError
from neuroshard_pipeline.measurement.campaign import noise_floor, reduce_comm, run_campaign
from neuroshard_pipeline.measurement.comm_bench import CollectiveBench
from neuroshard_pipeline.measurement.costs import raw_shard
from neuroshard_pipeline.measurement.host_clock import Place
from neuroshard_pipeline.measurement.params import CommMeasureParams
from neuroshard_pipeline.measurement.protocol import Timing
from neuroshard_pipeline.measurement.stretches import Stretch
from neuroshard_pipeline.tables import comm_samples_from_frame
from neuroshard_pipeline.tables.samples import CommSample

_SUFFIX = ".parquet"
_END = "end"


def main() -> None:
    """What every rank runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=Path, required=True, help="Parquet of augment.comm_samples")
    parser.add_argument("--params", type=Path, required=True, help="YAML with measure.comm and measure.seed")
    parser.add_argument("--out", type=Path, required=True, help="folder of the shards")
    arguments = parser.parse_args()
    try:
        run(arguments.samples, arguments.params, arguments.out)
    except NeuroShardError as problem:
        raise SystemExit(f"Error: {problem}") from problem


def run(samples_file: Path, params_file: Path, out: Path) -> None:
    """Measure as one rank of the world that torchrun describes in the environment.

    Raises:
        MeasurementError: torchrun did not start this process, or there is nothing to measure.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        raise MeasurementError("torchrun must start this module on every host; its --help shows the command")
    # The store of the agents outlives a restart; torchrun tells attempts apart.
    tcp_store, rank, world_size = next(dist.rendezvous("env://"))
    store = dist.PrefixStore(f"campaign/{os.environ['TORCHELASTIC_RESTART_COUNT']}", tcp_store)
    if rank == 0:
        store.set("job", json.dumps(_job(samples_file, params_file, world_size)))
    job = json.loads(store.get("job"))
    params = CommMeasureParams(**job["params"])
    samples = comm_samples_from_frame(pd.DataFrame(job["samples"]))
    place = Place(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    bench = CollectiveBench(rank, world_size, params, store, place)
    if rank == 0:
        folder = out / f"{world_size // place.ranks_here}x{place.ranks_here}"
        _lead(samples, params, job["seed"], folder, TorchrunCrew(samples, bench, store, world_size))
    else:
        _follow(samples, bench, store, rank)
    dist.barrier()
    dist.destroy_process_group()


@final
class TorchrunCrew:
    """Rank 0's view of the ranks: it tells them through the store what to measure, and collects what they timed."""

    def __init__(
        self, samples: Sequence[CommSample], bench: CollectiveBench, store: dist.Store, world_size: int
    ) -> None:
        self._samples = samples
        self._bench = bench
        self._store = store
        self._world_size = world_size
        self._number = 0

    def run(self, stretches: Iterable[Stretch]) -> Iterator[tuple[Stretch, pd.DataFrame]]:
        """Measure stretches one after the other on all ranks."""
        for stretch in stretches:
            self._store.set(f"stretch/{self._number}", json.dumps(stretch.indices))
            timings = [self._bench.measure([self._samples[index] for index in stretch.indices])]
            timings += [self._answer(rank) for rank in range(1, self._world_size)]
            self._number += 1
            yield stretch, raw_shard(self._samples, stretch, timings)

    def close(self) -> None:
        """Let the other ranks go."""
        self._store.set(f"stretch/{self._number}", json.dumps(_END))

    def _answer(self, rank: int) -> list[Timing]:
        return [Timing(*timing) for timing in json.loads(self._store.get(f"timings/{self._number}/{rank}"))]


def _lead(
    samples: Sequence[CommSample], params: CommMeasureParams, seed: int, folder: Path, crew: TorchrunCrew
) -> None:
    for key, shard in run_campaign(samples, params, seed, _stored(folder), crew):
        _store_shard(shard, folder / f"{key}{_SUFFIX}")
    crew.close()
    shards = _stored(folder)
    reduce_comm(shards, samples, params, seed).to_parquet(folder / f"comm_costs{_SUFFIX}", index=False)
    (folder / "noise_floor.json").write_text(json.dumps(noise_floor(shards, samples, params, seed), indent=1))


def _follow(samples: Sequence[CommSample], bench: CollectiveBench, store: dist.Store, rank: int) -> None:
    number = 0
    while (indices := json.loads(store.get(f"stretch/{number}"))) != _END:
        timings = bench.measure([samples[index] for index in indices])
        store.set(f"timings/{number}/{rank}", json.dumps(timings))
        number += 1


def _job(samples_file: Path, params_file: Path, world_size: int) -> dict[str, Any]:
    """What all ranks must know, as JSON."""
    frame = pd.read_parquet(samples_file)
    fitting = frame[frame["world_size"] == world_size]
    if fitting.empty:
        sizes = ", ".join(map(str, sorted(frame["world_size"].unique())))
        raise MeasurementError(
            f"{samples_file} has no sample of {world_size} ranks but of {sizes}; start as many with torchrun"
        )
    conf = OmegaConf.load(params_file)
    return {
        "params": OmegaConf.to_container(OmegaConf.select(conf, "measure.comm")),
        "seed": OmegaConf.select(conf, "measure.seed"),
        "samples": fitting.to_dict("list"),
    }


def _stored(folder: Path) -> dict[str, partial[pd.DataFrame]]:
    paths = [path for path in folder.rglob(f"*/*/*{_SUFFIX}") if not path.name.startswith(".")]
    return {path.relative_to(folder).as_posix().removesuffix(_SUFFIX): partial(pd.read_parquet, path) for path in paths}


def _store_shard(shard: pd.DataFrame, path: Path) -> None:
    """Write all of a shard or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    shard.to_parquet(part, index=False)
    part.replace(path)


if __name__ == "__main__":
    main()
