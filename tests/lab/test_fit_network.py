"""Fits of modelled clusters, errors of the presets on published collectives, and the reader of these collectives."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cluster_sheets import choose_cluster, network_sheets, preset_yaml, stated_card_gb_per_s
from conftest import ROOT
from fit_network import fit_cluster, fit_networks, from_other_sizes, predicted_us, with_card
from published_collectives import COLUMNS, publisher_of, read_published_collectives

from neuroshard_pipeline.errors import MeasurementError, TableFileError
from neuroshard_pipeline.lab.network import COLLECTIVES, collective_us
from neuroshard_pipeline.lab.network_presets import ethernet, network_preset
from neuroshard_pipeline.lab.params import lab_values

SHEETS = network_sheets()
PUBLISHED = ROOT / "data" / "01_raw" / "published"


def rows_of(file: Path):
    return read_published_collectives(file, SHEETS.gpus, SHEETS.clusters)


@pytest.fixture(scope="module")
def published():
    files = [PUBLISHED / "collectives.csv", PUBLISHED / "collectives_further.csv"]
    return [row for file in files for row in rows_of(file)[0]]


def prediction(rows):
    times = np.zeros(len(rows))
    for cluster in {row.cluster for row in rows}:
        at = [place for place, row in enumerate(rows) if row.cluster == cluster]
        params = with_card(network_preset(cluster.name), cluster.card_gb_per_s, SHEETS.clusters[cluster.name])
        times[at] = predicted_us([rows[place] for place in at], params, SHEETS.fit.one_process_us)
    return times


def test_every_cluster_sheet_has_a_preset():
    assert set(SHEETS.clusters) <= set(lab_values()["networks"])
    for name, sheet in SHEETS.clusters.items():
        assert network_preset(name).gpus_per_host == sheet.gpus_per_host
        assert network_preset(name).fabric.trees == sheet.trees
        assert network_preset(name).fabric.card_gb_per_s <= sheet.card_gb_per_s
        assert network_preset(name).host.link_gb_per_s <= SHEETS.gpus[sheet.gpu].link_gb_per_s
    share = lab_values()["network_fit"]["cloud"]["card_share"]
    assert ethernet(40.0, 4).fabric.card_gb_per_s == pytest.approx(share * 40 / 8 / 4), "four ranks share 40 Gbit/s"


def test_the_presets_are_the_fit_of_all_published_rows(published):
    """`make fit-network` prints them."""
    fitted = fit_networks(published, SHEETS)
    for name in SHEETS.clusters:
        found, shipped = (
            {**params.host.model_dump(), **params.fabric.model_dump()}
            for params in (fitted.params(name), network_preset(name))
        )
        assert found == pytest.approx(shipped, rel=0.03)


def test_presets_predict_the_published_rows_within_the_aims(published):
    """The presets were fitted to these rows; benchmarks/lab/check_gpu_lab.py leaves out each publisher in turn."""
    errors = prediction(published) / [row.time_us for row in published]
    large = np.array([row.size_bytes >= 1e6 for row in published])
    floors = np.array([row.size_bytes < 2**16 and not row.noisy for row in published])
    assert np.median(np.abs(errors[large] - 1)) < 0.12
    assert np.exp(np.median(np.abs(np.log(errors[floors])))) < 1.5


def test_a_fit_finds_the_numbers_that_made_the_data(published):
    """The times are those of the preset h100-efa on 2 hosts; the fit to them starts from the preset h100-ib400."""
    truth, start = network_preset("h100-efa"), network_preset("h100-ib400")
    made = []
    for row in [row for row in published if row.ranks == 16 and row.cluster.name == "h100-efa"]:
        for collective in COLLECTIVES:
            us = float(collective_us(collective, row.size_bytes, 16, 2, truth))
            made.append(replace(row, collective=collective, time_us=us))
    fitted = fit_cluster(made, "h100-ib400", start, SHEETS)
    before, after = (
        np.median(np.abs(predicted_us(made, params, 0.0) / [row.time_us for row in made] - 1))
        for params in (start, fitted)
    )
    assert before > 0.2
    assert after < 0.03
    assert fitted.fabric.card_gb_per_s == pytest.approx(truth.fabric.card_gb_per_s, rel=0.1)


def test_rows_predicted_from_other_sizes_are_not_in_the_fit(published):
    """A row whose time is wrong by a factor of 100 does not move its own prediction."""
    rows = [row for row in published if row.publisher.startswith("lessizzmore")]
    wrong = [replace(row, time_us=row.time_us * (100 if row.size_bytes == 2**20 else 1)) for row in rows]
    start = network_preset("h100-tcpxo")
    for tested in (rows, wrong):
        found, times = from_other_sizes(tested, "h100-tcpxo", start, SHEETS)
        assert len(found) == len(rows)
        at = next(place for place, row in enumerate(found) if row.size_bytes == 2**20)
        assert times[at] == pytest.approx(203.2, rel=0.15)


def test_a_fit_without_rows_is_refused(published):
    noisy = [row for row in published if row.noisy]
    with pytest.raises(MeasurementError, match=r"h100-ib400: none of \d+ measurements .* is free of noise"):
        fit_cluster(noisy, "h100-ib400", network_preset("h100-ib400"), SHEETS)


def test_rows_of_one_rank_say_nothing_about_a_cluster(published):
    """A modelled collective of one rank takes no time, so fits, which compare logarithms of times, leave it out."""
    start = network_preset("h100-efa")
    rows = [row for row in published if row.ranks == 16 and row.cluster.name == "h100-efa"]
    alone = [replace(row, ranks=1, hosts=1) for row in rows]
    for fit in (fit_cluster, from_other_sizes):
        assert str(fit(rows + alone, "h100-efa", start, SHEETS)) == str(fit(rows, "h100-efa", start, SHEETS))
    with pytest.raises(MeasurementError, match=r"h100-efa: none of \d+ measurements .* at least two GPUs"):
        fit_cluster(alone, "h100-efa", start, SHEETS)


def test_a_preset_reads_back_as_it_was_printed():
    import yaml

    params = network_preset("a100-efa")
    assert type(params)(**yaml.safe_load(preset_yaml("mine", params, "a comment"))["mine"]) == params


@pytest.mark.parametrize(
    ("text", "gpus_per_host", "expected"),
    [
        ("NVSwitch + EFA 3200Gb/host", 8, 50),
        ("NVSwitch + EFA 4x100Gb", 8, 6.25),
        ("8 x 400 Gbps RoCE", 8, 50),
        ("InfiniBand 100G", 8, 12.5),
        ("NDR InfiniBand", 8, 50),
        ("4x HDR", 8, 12.5),
        ("NVLink 4-GPU node + Slingshot-11", 4, None),
        ("rate not stated; same log sendrecv ~15 GB/s", 8, 15),
        ("NVL72 NVLink + Quantum InfiniBand", 4, None),
        ("", 8, None),
    ],
)
def test_stated_rates(text, gpus_per_host, expected):
    assert stated_card_gb_per_s(text, gpus_per_host) == expected


def test_unknown_networks_are_assumed_and_unknown_gpus_refused():
    def chosen(gpu, network):
        return choose_cluster(gpu, network, 8, SHEETS.gpus, SHEETS.clusters)

    assert chosen("NVIDIA H200", "something new").assumed == "network of h100-ib400"
    assert chosen("H100-SXM5-80GB (p5)", "NVSwitch + EFA 3200Gb/host").assumed == ""
    assert chosen("A100-SXM4", "8x200Gb RoCE").name == "a100-ib200"
    assert chosen("GH200 480GB", "Slingshot-11").name == "gh200-slingshot"
    assert chosen("GeForce RTX 4090", "PCIe") is None
    assert chosen("NVIDIA A100-PCIE-40GB", "InfiniBand") is None


@pytest.fixture
def write(tmp_path):
    def of(**changes):
        cells = {
            "gpu": "H100", "hosts": "2", "gpus_per_host": "8", "ranks": "16", "interconnect": "EFA 3200Gb/host",
            "collective": "all_reduce", "bytes": "1048576", "time_us": "123.2", "algbw_GBs": "8.51",
            "busbw_GBs": "15.96", "software": "", "source": "a/b:c.log", "note": "",
        }  # fmt: skip
        with (tmp_path / "rows.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerow(cells | changes)
        return tmp_path / "rows.csv"

    return of


def test_blank_cells_are_derived(write):
    for changes in ({}, {"time_us": ""}, {"time_us": "", "algbw_GBs": ""}, {"hosts": ""}, {"gpus_per_host": ""}):
        (row,), skipped = rows_of(write(**changes))
        assert not skipped
        assert (row.ranks, row.hosts, row.collective, row.publisher) == (16, 2, "all_reduce", "a/b")
        assert row.time_us == pytest.approx(123.2, rel=1e-3)
    (row,), _ = rows_of(write(ranks="", collective=""))
    assert (row.ranks, row.collective) == (16, "all_reduce")
    (row,), _ = rows_of(write(collective="All-to-All"))
    assert row.collective == "alltoall"


def test_domains_of_several_hosts_count_as_hosts(write):
    (row,), _ = rows_of(write(gpu="GB200 NVL72", hosts="36", gpus_per_host="4", ranks="144", interconnect="NVL72"))
    assert row.hosts == 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpu": "RTX 4090"}, "no preset for GPU"),
        ({"gpu": ""}, "GPU not stated"),
        ({"ranks": "", "hosts": ""}, "ranks not stated"),
        ({"collective": "broadcast"}, "'broadcast' is not modelled"),
        ({"collective": "", "busbw_GBs": "8.0"}, "collective not stated"),
        ({"time_us": "", "algbw_GBs": "0.00", "busbw_GBs": ""}, "neither time nor bandwidth"),
        ({"bytes": ""}, "bytes not stated"),
        ({"note": "a fault; do not calibrate on it"}, "reports the time as a fault"),
    ],
)
def test_rows_that_cannot_be_modelled_are_skipped_with_the_reason(write, changes, reason):
    rows, skipped = rows_of(write(**changes))
    assert rows == []
    assert reason in skipped[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"time_us": "fast"}, "line 2, column 'time_us'.*not a number"),
        ({"bytes": "-1"}, "line 2, column 'bytes'.*above 0"),
        ({"hosts": "32"}, "line 2, column 'hosts'.*exceeds the number of ranks, 16"),
    ],
)
def test_wrong_cells_are_refused(write, changes, message):
    with pytest.raises(TableFileError, match=rf"rows.csv.*{message}"):
        rows_of(write(**changes))


def test_a_missing_column_is_named(tmp_path):
    (tmp_path / "rows.csv").write_text("gpu,hosts\nH100,1\n")
    with pytest.raises(TableFileError, match="column 'gpus_per_host' is missing; the columns are gpu, hosts"):
        rows_of(tmp_path / "rows.csv")


def test_the_publisher_of_a_source():
    assert publisher_of("a/b:results/x.log") == "a/b"
    assert publisher_of("a/b#314") == "a/b#314"
    assert publisher_of("a/b:README.md#2-Racks") == "a/b"
    assert publisher_of("OCI guide (stored file 4)") == "OCI guide"
