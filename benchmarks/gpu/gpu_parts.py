"""Times on one GPU what a step of TorchRec's embedding module does besides lookups and collectives.

    PYTHONPATH=src python benchmarks/gpu/gpu_parts.py --out ~/parts.csv       # half a minute

It runs the operators that TorchRec calls, at several sizes, and compares each time with the lab's (`lab/step.py`):

    bucketize       ids are sorted into one bucket per rank, for pooled and for sequence tables
    permute         ids of a batch change their order, by feature and by rank
    concatenate     outputs are put side by side
    gradients       gradients of replicas: zeros are written, copied, and read by the optimizer
    host sync       time without work for the GPU while the host copies a number and launches the next kernel

Times are medians, and begin when the GPU has been given all kernels, except for `host sync`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from gpu_check_setup import lab_device

import neuroshard_pipeline.measurement.fbgemm  # noqa: F401 - loads torch.ops.fbgemm
from neuroshard_pipeline.lab.device import ModelledDevice, modelled_device
from neuroshard_pipeline.lab.step import step_params
from neuroshard_pipeline.lab.step_groups import StepParams

_REPEATS = 15
_SPIN_CYCLES = 2**22


class Part(NamedTuple):
    """One timed operator: its name, size in ids, segments or bytes, what it does, and the lab's time in us."""

    name: str
    size: int
    run: Callable[[], Any]
    lab_us: float


def main() -> int:
    """Time all parts, print a table, and write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="CSV file for the table")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu-parts: no CUDA device on this machine; nothing was timed", file=sys.stderr)
        return 2
    gpu = modelled_device(lab_device(torch.cuda.get_device_name(0)) or "h100")
    host = step_params()
    rows = [(part.name, part.size, _kernels_us(part.run), part.lab_us) for part in _parts(gpu, host)]
    rows.append(("host sync", 1, _host_sync_us(), host.host_sync_us))
    frame = pd.DataFrame(rows, columns=["part", "size", "measured_us", "lab_us"])
    frame["lab / measured"] = frame["lab_us"] / frame["measured_us"]
    print(frame.round(2).to_string(index=False))
    if args.out:
        frame.to_csv(args.out, index=False)
    return 0


def _parts(gpu: ModelledDevice, host: StepParams) -> Iterator[Part]:
    launch_us = gpu.kernels.forward_launch_us
    for pooling, features, ranks in product((1, 10, 50), (8, 64), (2, 8, 64)):
        lengths, ids = _ids(features, 8192, pooling)
        for name, keep_order, ns in (
            ("bucketize", False, host.pooled_sort_ns),
            ("bucketize, order kept", True, host.sequence_sort_ns),
        ):
            sizes = torch.full((features,), 10**7 // ranks + 1, device="cuda", dtype=ids.dtype)
            given = lengths, ids, False, keep_order, sizes, ranks, None
            run = _call(torch.ops.fbgemm.block_bucketize_sparse_features, *given)
            yield Part(f"{name}, {ranks} ranks, {features} features", len(ids), run, launch_us + len(ids) * ns / 1e3)
        order = torch.randperm(features, device="cuda").int()
        run = _call(torch.ops.fbgemm.permute_2D_sparse_data, order, lengths.view(features, -1), ids, None, len(ids))
        moved = gpu.streamed_us(2.0 * (4 * lengths.numel() + 8 * ids.numel()))
        lab_us = 4 * launch_us + float(moved) + lengths.numel() * host.permute_segment_ns / 1e3
        yield Part(f"permute, {features} features", len(ids), run, lab_us)
    for mebibytes in (4, 64, 1024):
        rows = [torch.randn(8192, mebibytes * 2**20 // 8192 // 4 // 4, device="cuda") for _ in range(4)]
        moved = 2.0 * mebibytes * 2**20
        yield Part("concatenate", int(moved), _call(torch.cat, rows, 1), launch_us + float(gpu.streamed_us(moved)))
        weights = torch.nn.Parameter(torch.randn(mebibytes * 2**18, device="cuda"))
        weights.grad, buffer = torch.randn_like(weights), torch.empty(mebibytes * 2**18, device="cuda")
        for name, optimizer, passes in (
            ("gradients, sgd", torch.optim.SGD([weights], lr=1e-6), 6),
            ("gradients, adagrad", torch.optim.Adagrad([weights], lr=1e-6), 8),
        ):
            size = passes * mebibytes * 2**20

            def run(optimizer: Any = optimizer, weights: Any = weights, buffer: Any = buffer) -> None:
                buffer.copy_(weights.grad)
                optimizer.step()
                weights.grad.zero_()

            yield Part(name, size, run, 3 * launch_us + float(gpu.streamed_us(size)))


def _ids(features: int, samples: int, pooling: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Bag lengths (features * samples,) with the mean `pooling`, and as many ids as they say."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    lengths = torch.randint(0, 2 * pooling + 1, (features * samples,), generator=generator, device="cuda").int()
    ids = torch.randint(0, 10**7, (int(lengths.sum()),), generator=generator, device="cuda")
    return lengths, ids


def _call(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    return lambda: function(*arguments)


def _kernels_us(run: Callable[[], Any]) -> float:
    times = []
    for _ in range(_REPEATS + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(_SPIN_CYCLES)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * begin.elapsed_time(end))
    return float(np.median(times[2:]))


def _host_sync_us() -> float:
    """Time between two small kernels, between which the host waits for a number from the GPU."""
    number = torch.ones(1, device="cuda")
    gaps = []
    for _ in range(200):
        end, begin = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(2**18)
        end.record()
        number.item()
        begin.record()
        number.add_(0)
        torch.cuda.synchronize()
        gaps.append(1e3 * end.elapsed_time(begin))
    return float(np.median(gaps))


if __name__ == "__main__":
    sys.exit(main())
