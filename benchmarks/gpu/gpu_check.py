"""Checks in about a minute whether `gpu_campaign.py` can run on this machine's GPU; prints a table with remedies.

    make gpu-check
    PYTHONPATH=src python benchmarks/gpu/gpu_check.py            # the same without make

The table has one row per check. `pass` and `FAIL` are verdicts; `-` marks a check without a verdict on this machine.

    kernels         outputs and updates of FBGEMM's fused lookup against torch's embedding bag in float64
    memory          what the campaign would need against what the GPU has free
    largest sample  runs a sample that fills nine tenths of the arena; compares its peak memory with the predicted one
    copy bandwidth  against the data sheet (lab.devices in conf/base/parameters_lab.yml)
    launch floor    time of the host's calls for a lookup of a few ids, and of its kernels
    L2 flush        its duration, and its effect on a lookup that fits the L2 cache
    collective      all-to-all of two GPUs: do both measure the same, and 5 ms more if the other starts 5 ms late?
    lab             costs of 30 samples by the lab's formulas for this GPU against measured ones

`gpu_campaign.py` runs these checks first; a failure of the first three ends it. The exit code is 2 after such a
failure, and if nothing can be checked, for example without a CUDA device; 1 after another failure; 0 otherwise.

The script needs the packages of `gpu_campaign.py`, but no Kedro. The tests run it with CPU kernels (--backend
fbgemm_cpu).
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

try:
    import torch
    from gpu_check_setup import SEED, Check, Setup, campaign_params, small
    from gpu_check_timings import check_collective, check_copy, check_flush, check_lab, check_launch_floor
    from gpu_check_vital import check_kernels, check_largest_sample

    from neuroshard_pipeline.errors import NeuroShardError
    from neuroshard_pipeline.measurement.compute_bench import make_bench
    from neuroshard_pipeline.measurement.cuda import require_devices
except ModuleNotFoundError as missing:
    if __name__ != "__main__":
        raise
    # Linux has this file as soon as NVIDIA's driver runs.
    device = "" if Path("/dev/nvidiactl").exists() else "no CUDA device on this machine, and "
    print(f"gpu-check: {device}{sys.executable} has no module {missing.name}; nothing was checked", file=sys.stderr)
    sys.exit(2)


def main() -> int:
    """Read the command line, run all checks, print the table; returns the exit code."""
    args = _command_line().parse_args()
    params = campaign_params(args.backend, round(args.arena_gib * 2**30))
    try:
        if args.backend == "fbgemm_cuda":
            require_devices(args.backend, 1)
        checks = [*run_checks(Setup(params, args.batch_size, args.row_scale, args.copy_mib), show=True)]
    except NeuroShardError as problem:
        print(f"gpu-check: {problem}; nothing was checked", file=sys.stderr)
        return 2
    failed = [check.name for check in checks if check.passed is False]
    print(f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}" if failed else "no check failed")
    if any(check.vital for check in checks if check.passed is False):
        return 2
    return int(bool(failed))


def _command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="fbgemm_cuda", choices=["fbgemm_cuda", "fbgemm_cpu"])
    parser.add_argument("--arena-gib", type=float, default=32.5, help="as in the campaign")
    parser.add_argument("--batch-size", type=int, default=65536, help="as in the campaign")
    parser.add_argument("--row-scale", type=float, default=1.0, help="as in the campaign")
    parser.add_argument("--copy-mib", type=int, default=4096, help="size of the copies that measure the copy bandwidth")
    return parser


def run_checks(setup: Setup, show: bool) -> Iterator[Check]:
    """Run all checks, one after another. A check that raises has failed; the others still run.

    Args:
        setup: what is checked.
        show: print each row of the table as soon as it is known.

    Raises:
        MeasurementError: FBGEMM is missing, or the arena of the smallest check cannot be allocated.
    """
    make_bench(small(setup.params), SEED, 0)
    checks: dict[str, Callable[[Setup], Check]] = {
        "kernels": check_kernels,
        "largest sample": check_largest_sample,
        "copy bandwidth": check_copy,
        "launch floor": check_launch_floor,
        "L2 flush": check_flush,
        "collective": check_collective,
        "lab": check_lab,
    }
    for name, function in checks.items():
        started = time.monotonic()
        try:
            check = function(setup)
        except (RuntimeError, MemoryError, NeuroShardError) as problem:
            text = f"{type(problem).__name__}: {problem}".splitlines()[0]
            check = Check(name, False, text, "see the error", vital=name in ("kernels", "largest sample"))
        finally:
            _free()
        if show:
            verdict = {True: "pass", False: "FAIL", None: "-"}[check.passed]
            print(f"{verdict:<5}{check.name:<16}{time.monotonic() - started:5.1f} s  {check.found}", flush=True)
            if check.passed is False:
                print(f"{'':28}remedy: {check.remedy}", flush=True)
        yield check


def _free() -> None:
    """Give back the memory of a finished check. After a CUDA error, this fails, too; the failure is ignored."""
    gc.collect()
    if torch.cuda.is_available():
        with suppress(RuntimeError):
            torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
