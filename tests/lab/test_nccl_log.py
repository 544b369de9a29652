"""Logs of nccl-tests: several versions of the format, layouts of GPUs and processes, and files that are no logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_sheets import network_sheets
from nccl_log import read_nccl_log

from neuroshard_pipeline.errors import TableFileError

SHEETS = network_sheets()
HEADER = "#  size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong\n"
# xxrjun/nccl-tests-cluster, 8 H100 of one host.
H100 = """\
# nccl-tests version 2.17.8 nccl-headers=22902 nccl-library=22902
# Collective test starting: {name}_perf
# nThread 1 nGpus 1 minBytes 33554432 maxBytes 68719476736 step: 2(factor) warmup iters: 5 iters: 20
"""
ALL_REDUCE = """\
    33554432       4194304    double     sum      -1   182.87  183.49  321.10       0   185.00  181.37  317.40       0
  1073741824     134217728    double     sum      -1  4000.80  268.38  469.67       0  4001.50  268.33  469.58       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 395.1
"""
ALL_TO_ALL = """\
    33554432        524288    double    none      -1   124.79  268.89  235.28       0   125.00  268.40  234.80     N/A
"""
# NVIDIA/nccl-tests issue 78: an old version without root. The reduction is blank if the collective has none.
OLD_ALL_REDUCE = (
    "   268435456      67108864    float     sum   122131    2.20    4.33  2e-06   122165    2.20    4.33  2e-06\n"
)
OLD_ALL_TO_ALL = (
    "   268435456       1048576    float           520935    0.52    0.51  0e+00   519562    0.52    0.51  1e+00\n"
)


def devices(hosts=1, per_host=8, gpu="NVIDIA H100 80GB HBM3", one_process=False):
    return "# Using devices\n" + "".join(
        f"#  Rank {rank:2d} Group  0 Pid {100 if one_process else 100 + rank} on node{rank // per_host} device "
        f"{rank % per_host:2d} [0000:{rank:02x}:00] {gpu}\n"
        for rank in range(hosts * per_host)
    )


@pytest.fixture
def read(tmp_path):
    def of(text, name="nccl.log", **options):
        path = Path(tmp_path / name)
        path.write_text(text)
        return read_nccl_log(path, SHEETS.gpus, SHEETS.clusters, **options)

    return of


def test_a_log_with_two_tests(read):
    text = H100.format(name="all_reduce") + devices() + HEADER + ALL_REDUCE
    text += H100.format(name="alltoall") + devices() + HEADER + ALL_TO_ALL
    rows = read(text)
    assert [(row.collective, row.size_bytes, row.time_us) for row in rows] == [
        ("all_reduce", 2**25, 182.87),
        ("all_reduce", 2**30, 4000.80),
        ("alltoall", 2**25, 124.79),
    ]
    assert {(row.ranks, row.hosts, row.one_process, row.cluster.name) for row in rows} == {(8, 1, False, "h100-ib400")}
    assert rows[0].where == "nccl.log: line 14"


def test_lines_may_begin_with_the_rank_that_the_launcher_writes(read):
    text = "".join(
        f"  0: {line}\n" for line in (devices(2, 4, "NVIDIA GH200 120GB") + HEADER + ALL_REDUCE).splitlines()
    )
    rows = read(text, "all_reduce_perf.txt")
    assert {(row.ranks, row.hosts, row.cluster.name) for row in rows} == {(8, 2, "gh200-slingshot")}


def test_one_process_that_drives_all_gpus_is_seen(read):
    assert all(row.one_process for row in read(devices(one_process=True) + HEADER + ALL_REDUCE))


@pytest.mark.parametrize(
    ("lines", "name", "collective"),
    [
        (OLD_ALL_REDUCE, "nccl.log", "all_reduce"),  # 4.33 / 2.20 = 2 * 63 / 64
        (OLD_ALL_TO_ALL, "all2all.log", "alltoall"),
        (OLD_ALL_REDUCE.replace("4.33", "2.17"), "nccl.log", "reduce_scatter"),
    ],
)
def test_the_collective_of_an_old_log_follows_from_its_bandwidths_or_its_file_name(read, lines, name, collective):
    rows = read(devices(8, 8, "Tesla V100-SXM2-32GB") + lines, name)
    assert [(row.collective, row.ranks, row.hosts) for row in rows] == [(collective, 64, 8)]
    assert rows[0].time_us == float(lines.split()[4 if "sum" in lines else 3])


def test_wrong_and_empty_rows_are_left_out(read):
    wrong = ALL_REDUCE.replace("469.67       0", "469.67   12288")
    empty = "           0             0     float     sum      -1    91.92    0.00    0.00      0    60.56    0.00\n"
    assert [row.size_bytes for row in read(devices() + HEADER + empty + wrong, "all_reduce.log")] == [2**25]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty|no line with size"),
        ("make: *** [all] Error 2\n", "no line with size, count, type"),
        (HEADER + ALL_REDUCE, "no line '# Rank 0"),
        (devices() + OLD_ALL_TO_ALL, "does not say which collective.*COLLECTIVE="),
        (devices(gpu="GeForce RTX 4090") + ALL_REDUCE, "'GeForce RTX 4090' is unknown.*CLUSTER=h100-ib400"),
    ],
)
def test_a_file_that_gives_no_costs_is_refused_with_its_name_and_the_reason(read, text, message):
    with pytest.raises(TableFileError, match=rf"nccl.log.*({message})"):
        read(text)
