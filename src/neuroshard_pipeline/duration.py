"""Estimates how long a run takes on this machine.

`make run` calls this file before it installs anything, so the file imports nothing but Python's standard library:

    python3 src/neuroshard_pipeline/duration.py <environment>
"""

import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

CONF = Path(__file__).parents[2] / "conf"
#: The probe runs in this many processes at once, because gloo's ranks keep both cores of the reference machine busy.
_PROCESSES = 2
_PROBE_SECONDS = 0.8
#: Milliseconds of the two parts of the probe on the reference machine: two quiet cores of an AMD EPYC (32 MB L3).
_REFERENCE_LOOP_MS, _REFERENCE_COPY_MS = 2.8, 45.0
_COPIED_BYTES = 2**26
_LOOPS = 200_000
#: Factor of every estimate, in case other programs start later. The product is rounded up to half minutes.
_MARGIN = 1.1


def slowdown() -> float:
    """Measure for about a second how many times slower this machine is than the reference machine.

    Two processes run at once. Each alternates between a loop in Python and a copy that exceeds most caches. The result
    is the mean of both ratios to the reference machine, because a run consists of both kinds of work: lookups wait for
    the memory, and the rest keeps the cores busy. Other programs slow the probe down as much as they would a run.
    """
    command = [sys.executable, "-S", "-E", __file__, "--probe"]
    # All processes must be running before the first one is waited for.
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(_PROCESSES)]
    measured = [[float(ms) for ms in process.communicate()[0].split()] for process in running]
    ratios = [(loop_ms / _REFERENCE_LOOP_MS + copy_ms / _REFERENCE_COPY_MS) / 2 for loop_ms, copy_ms in measured]
    return sum(ratios) / len(ratios)


def estimate_minutes(expected_s: Mapping[str, float], budgeted_s: Mapping[str, float], slowdown: float) -> float:
    """Minutes to announce for a run on a machine that is `slowdown` times slower than the reference machine.

    `expected_s` are seconds by stage on the reference machine, `budgeted_s` those to which time budgets limit a stage.
    A slow machine measures fewer rounds of visits, but at least half of them (`measurement.time_budget`), so that a
    stage takes at least half as long as without a limit.
    """
    full_s = {stage: seconds * slowdown for stage, seconds in expected_s.items()}
    total_s = sum(max(min(seconds, budgeted_s.get(stage, seconds)), seconds / 2) for stage, seconds in full_s.items())
    return -(-total_s * _MARGIN // 30) / 2


def seconds_of_stages(environment: str, name: str = "expected_seconds", conf: Path = CONF) -> dict[str, float]:
    """Seconds by stage, as the parameter files of an environment, or else of `base`, state them under `name`.

    `name` is `expected_seconds` or `budgeted_seconds`. The result is empty if the environment states null.
    """
    for folder in (environment, "base"):
        for file in sorted((conf / folder).glob("parameters*.yml")):
            if found := re.search(rf"^{name}: *(.*)", file.read_text(), re.MULTILINE):
                return {key: float(value) for key, value in re.findall(r"(\w+): *([\d.]+)", found[1])}
    return {}


def announcement(minutes: float, what: str) -> str:
    """The sentence that announces a run of about `minutes` from now on."""
    end = time.strftime("%H:%M", time.localtime(time.time() + 60 * minutes))
    return f"{what} takes about {minutes:g} minutes on this machine, until {end} (estimated by a probe of one second)."


def _probe() -> tuple[float, float]:
    """Mean milliseconds of a loop in Python and of a copy of `_COPIED_BYTES`."""
    source, target = bytes(_COPIED_BYTES), bytearray(_COPIED_BYTES)
    target[:] = source
    count, loop_s, copy_s = 0, 0.0, 0.0
    while loop_s + copy_s < _PROBE_SECONDS:
        start = time.perf_counter()
        for _ in range(_LOOPS):
            pass
        middle = time.perf_counter()
        target[:] = source
        count, loop_s, copy_s = count + 1, loop_s + middle - start, copy_s + time.perf_counter() - middle
    return 1e3 * loop_s / count, 1e3 * copy_s / count


def main(argument: str) -> None:
    """Print the announcement of `make run` for an environment, or the probe's figures."""
    if argument == "--probe":
        print(*_probe())
        return
    expected_s = seconds_of_stages(argument)
    if (CONF.parent / ".venv" / ".run").exists():
        expected_s.pop("installation", None)
    if expected_s:
        minutes = estimate_minutes(expected_s, seconds_of_stages(argument, "budgeted_seconds"), slowdown())
        print(announcement(minutes, "make run"), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
