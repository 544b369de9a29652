"""The reader of published lookups: how rows become lookups, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from published_lookups import COLUMNS, preset_of, read_published_lookups

from neuroshard_pipeline.errors import TableFileError
from neuroshard_pipeline.lab.device import device_names

PUBLISHED = Path(__file__).parents[2] / "data" / "01_raw" / "published" / "fbgemm_lookups.csv"
CELLS = {
    "gpu": "NVIDIA H100 80GB HBM3", "kernel": "FBGEMM SplitTBE training", "num_tables": "2", "rows_per_table": "1000",
    "dim": "64", "bag_len": "10", "batch": "512", "distribution": "uniform", "optimizer": "sgd", "placement": "device",
    "fwd_us": "100", "bwd_us": "300", "source": "somebody/something#1",
}  # fmt: skip


def read(tmp_path, columns=COLUMNS, **cells):
    row = CELLS | cells
    path = tmp_path / "lookups.csv"
    path.write_text(",".join(columns) + "\n" + ",".join(f'"{row.get(column, "")}"' for column in columns) + "\n")
    return read_published_lookups(path, device_names())


def lookup(tmp_path, **cells):
    rows, skipped = read(tmp_path, **cells)
    assert not skipped
    return rows[0].lookup


def test_all_rows_of_the_project_are_read_or_have_a_reason():
    rows, skipped = read_published_lookups(PUBLISHED, device_names())
    assert len(rows) + len(skipped) == 169
    assert len(rows) == 67
    assert skipped.count("GPU not stated") == 40


def test_uniform_ids_by_hand(tmp_path):
    """Every row gets Binomial(5120, 1/1000) ids, so that 1000 (1 - 0.999**5120) rows are expected to get any."""
    found = lookup(tmp_path)
    np.testing.assert_allclose(found.ids, [5120, 5120])
    np.testing.assert_allclose(found.unique_rows, 1000 * (1 - (1 - 1 / 1000) ** 5120), rtol=1e-6)


def test_fbgemm_draws_uniform_ids_for_alpha_one(tmp_path):
    np.testing.assert_allclose(lookup(tmp_path, distribution="alpha 1.0").unique_rows, lookup(tmp_path).unique_rows)
    assert lookup(tmp_path, distribution="alpha 1.15").unique_rows[0] < lookup(tmp_path).unique_rows[0]


def test_stated_distinct_rows_are_reproduced(tmp_path):
    found = lookup(tmp_path, distribution="power law alpha 1.05; 900 unique", batch="4096", rows_per_table="100000")
    assert found.unique_rows.sum() == pytest.approx(900, rel=1e-3)


def test_lists_ranges_and_means(tmp_path):
    found = lookup(tmp_path, dim="64;128", rows_per_table="1000-3000", bag_len="7.5 mean;2.5", n_indices="10000")
    np.testing.assert_allclose(found.dims, [64, 128])
    np.testing.assert_allclose(found.ids, [7500, 2500])
    np.testing.assert_allclose(found.unique_rows, 2000 * (1 - (1 - 1 / 2000) ** found.ids), rtol=1e-6)
    np.testing.assert_allclose(found.bags, [512, 512])


@pytest.mark.parametrize(
    ("text", "rows"),
    [("1e6", 1e6), ("10M", 1e7), ("2.5k", 2500), ("1024-4096", 2560), ("1k-3k", 2000), ("mean 7.5", 7.5)],
)
def test_numbers(tmp_path, text, rows):
    assert lookup(tmp_path, bag_len=text).ids[0] == pytest.approx(512 * rows)


def test_an_output_per_id_without_pooling(tmp_path):
    found = lookup(tmp_path, pooling="none")
    np.testing.assert_allclose(found.bags, found.ids)


@pytest.mark.parametrize(
    ("cells", "attribute", "value"),
    [
        ({"weights_dtype": "fp8 (NFP8)"}, "element_bytes", 1.0),
        ({"weights_dtype": "fp16"}, "element_bytes", 2.0),
        ({"output_dtype": "fp16"}, "output_bytes", 2.0),
        ({"optimizer": "exact_row_wise_adagrad, stochastic rounding"}, "optimizer", "rowwise_adagrad"),
        ({"optimizer": ""}, "optimizer", "rowwise_adagrad"),
        ({"optimizer": "exact_adagrad"}, "optimizer", "adagrad"),
        ({"optimizer": "lion", "bwd_us": ""}, "optimizer", "none"),
        ({"weighted": "yes"}, "weighted", True),
        ({"placement": "managed (UVM)"}, "placement", "managed"),
        ({"placement": "managed caching, cache ratio 0.8 of footprint"}, "cached_share", 0.8),
        ({"placement": "managed caching, after prefetch (cache hit)"}, "placement", "device"),
    ],
)
def test_cells(tmp_path, cells, attribute, value):
    assert np.all(np.asarray(getattr(lookup(tmp_path, **cells), attribute)) == value)


@pytest.mark.parametrize(
    ("cells", "times_us"),
    [
        ({"fwdbwd_us": "400"}, {"forward": 100, "backward": 300}),
        ({"fwd_us": "", "bwd_us": "", "fwdbwd_us": "400"}, {"total": 400}),
        ({"bwd_us": "", "bwd_cta_us": "10", "bwd_warp_us": "5"}, {"forward": 100, "reduction": 15}),
        ({"kernel": "FBGEMM bwd (CTA+warp)", "fwd_us": "", "bwd_us": "7"}, {"reduction": 7}),
    ],
)
def test_times(tmp_path, cells, times_us):
    assert read(tmp_path, **cells)[0][0].times_us == times_us


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"gpu": ""}, "GPU not stated"),
        ({"gpu": "MI250"}, "no preset for GPU 'MI250'"),
        ({"dim": ""}, "shape not stated (dim is blank)"),
        ({"num_tables": ""}, "shape not stated (num_tables is blank)"),
        ({"batch": ""}, "shape not stated (batch is blank)"),
        ({"fwd_us": "", "bwd_us": ""}, "no time in microseconds"),
        ({"timing": "CUDA events (host launch included)"}, "the time includes the host's launches, not the GPU alone"),
    ],
)
def test_rows_that_cannot_be_modelled_have_a_reason(tmp_path, cells, reason):
    assert read(tmp_path, **cells) == ([], [reason])


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"fwd_us": "-1"}, "column 'fwd_us': '-1' must be above 0"),
        ({"dim": "wide"}, "column 'dim': 'wide' is not a positive number"),
        ({"dim": "64,128"}, "column 'dim': '64,128' is not a positive number"),
        ({"dim": "0"}, "column 'dim': '0' is not a positive number"),
        ({"optimizer": "lion"}, "column 'optimizer': 'lion' is unknown; use sgd"),
        ({"weights_dtype": "text"}, "column 'weights_dtype': 'text' is unknown"),
        ({"placement": "tape"}, "column 'placement': 'tape' is unknown"),
    ],
)
def test_cells_that_make_no_sense_are_named(tmp_path, cells, message):
    rows, (reason,) = read(tmp_path, **cells)
    assert rows == []
    assert "line 2" in reason
    assert message in reason


def test_a_missing_column_is_named(tmp_path):
    with pytest.raises(TableFileError, match="column 'batch' is missing"):
        read(tmp_path, [column for column in COLUMNS if column != "batch"])


@pytest.mark.parametrize(
    ("gpu", "preset"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("A100 80GB PCIe", "a100-80gb-pcie"),
        ("A100-PG509-200 (A100 SXM4 40GB class)", "a100"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("GB200", None),
        ("MI300X", None),
    ],
)
def test_presets(gpu, preset):
    assert preset_of(gpu, device_names()) == preset


def test_a_note_names_the_memory_of_the_board(tmp_path):
    rows, _ = read(tmp_path, gpu="H100", note="2.4 TB/s peak (HBM2e-class board)")
    assert rows[0].preset == "h100-hbm2e"
