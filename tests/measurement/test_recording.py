from __future__ import annotations

import json
from dataclasses import replace

import pytest

from measurement.stand_in import write_stand_in
from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement import ComputeCampaign, RecordingParams, describe_hardware, open_recording
from neuroshard_pipeline.tables.frames import compute_samples_from_frame
from neuroshard_pipeline.tables.samples import ComputeSample
from neuroshard_pipeline.tables.table import Shard, Table, whole

SEED = 0


@pytest.fixture
def stand_in(tmp_path) -> RecordingParams:
    write_stand_in(tmp_path / "recording", num_tables=12, num_samples=8, batch_size=16)
    return RecordingParams(folder=str(tmp_path / "recording"), modelled_device=None)


@pytest.fixture
def recorded_params(compute_params):
    return compute_params(backend="recorded")


def samples_of(recording) -> list[ComputeSample]:
    return compute_samples_from_frame(recording.samples, recording.pool, recording.settings)


def test_the_recordings_samples_have_the_recorded_costs(stand_in, recorded_params):
    recording = open_recording(stand_in)
    samples = samples_of(recording)
    assert list(ComputeCampaign(recorded_params, SEED).run(samples, {})) == []
    frame = ComputeCampaign(recorded_params, SEED, stand_in).measure(samples[::-1])
    expected = recording.costs.iloc[::-1].reset_index(drop=True)
    assert frame["sample_id"].tolist() == expected["sample_id"].tolist()
    for column in ("forward_ms", "backward_ms", "repeats"):
        assert frame[column].tolist() == expected[column].tolist()
    assert frame["error"].isna().all()


def test_a_sample_is_known_by_its_content_not_by_its_name(stand_in, recorded_params):
    recording = open_recording(stand_in)
    sample = max(samples_of(recording), key=lambda sample: len(sample.shards))
    # Shards of the same widths, cut from wider tables, in another order; the sample has another name.
    shards = tuple(Shard(wider(shard.table), 4, shard.embedding_dim) for shard in reversed(sample.shards))
    again = ComputeSample("rank-of-a-plan", sample.batch_size, shards)
    larger = ComputeSample(sample.sample_id, sample.batch_size, (*sample.shards, sample.shards[0]))
    frame = ComputeCampaign(recorded_params, SEED, stand_in).measure([again, larger]).set_index("sample_id")
    recorded = recording.costs.set_index("sample_id").loc[sample.sample_id]
    assert frame.loc["rank-of-a-plan", "forward_ms"] == recorded["forward_ms"]
    assert frame.loc[sample.sample_id, ["forward_ms", "backward_ms"]].isna().all()
    assert "not in the recording" in frame.loc[sample.sample_id, "error"]


def wider(table: Table) -> Table:
    profile = (table.pooling_factor, table.unique_rows, table.reuse)
    return Table(table.name, table.num_embeddings, table.embedding_dim + 8, *profile)


def test_a_batch_table_or_optimizer_that_was_not_recorded_has_no_cost(stand_in, recorded_params):
    sample = samples_of(open_recording(stand_in))[0]
    other_batch = ComputeSample("batch", sample.batch_size * 2, sample.shards)
    other_table = ComputeSample("table", sample.batch_size, (whole(Table("unknown", 10, 4, 1.0)),))
    other_optimizer = ComputeSample("optimizer", sample.batch_size, sample.shards, "rowwise_adagrad")
    frame = ComputeCampaign(recorded_params, SEED, stand_in).measure([other_batch, other_table, other_optimizer])
    assert frame["error"].notna().all()
    assert frame[["forward_ms", "backward_ms", "spread_ms"]].isna().all(axis=None)
    assert frame["repeats"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("change", [{"num_features": 2}, {"is_weighted": True}, {"pooling": "mean"}])
def test_a_recorded_table_that_is_looked_up_in_another_way_has_no_cost(stand_in, recorded_params, change):
    sample = samples_of(open_recording(stand_in))[0]
    first, *others = sample.shards
    changed = Shard(replace(first.table, **change), first.column_offset, first.embedding_dim)
    frame = ComputeCampaign(recorded_params, SEED, stand_in).measure(
        [replace(sample, shards=(changed, *others)), replace(sample, sample_id="same")]
    )
    assert frame["error"].notna().tolist() == [True, False]


def test_some_rows_of_a_recorded_table_do_not_have_the_cost_of_all(stand_in, recorded_params):
    sample = samples_of(open_recording(stand_in))[0]
    first, *others = sample.shards
    half = Shard(first.table, 0, first.embedding_dim, 0, first.table.num_embeddings // 2, "row_wise")
    frame = ComputeCampaign(recorded_params, SEED, stand_in).measure([replace(sample, shards=(half, *others))])
    assert frame["error"].notna().all()


def test_no_samples_have_no_costs(stand_in, recorded_params):
    frame = ComputeCampaign(recorded_params, SEED, stand_in).measure([])
    assert list(frame) == ["sample_id", "forward_ms", "backward_ms", "spread_ms", "repeats", "error"]
    assert frame.empty


def test_noise_floor_and_hardware_are_those_of_the_recording(stand_in, recorded_params, comm_params):
    card = open_recording(stand_in).card
    summary = ComputeCampaign(recorded_params, SEED, stand_in).summary({}, [])
    date, floor, _ = summary
    assert date == card["date"]
    assert floor == card["noise_floor"]
    described = json.loads(json.dumps(describe_hardware(recorded_params, comm_params(), summary, summary, stand_in)))
    assert described["compute_backend"] == "recorded"
    assert described["recording"] == card
    assert described["recording"]["stand_in"] is True
    assert described["cpu_model"] == card["hardware"]["cpu_model"]


@pytest.mark.parametrize(
    "name",
    [
        "table_pool.parquet",
        "compute_samples.parquet",
        "compute_sample_settings.parquet",
        "compute_costs.parquet",
        "card.json",
    ],
)
def test_a_missing_file_is_named_with_the_remedy(stand_in, tmp_path, name):
    (tmp_path / "recording" / name).unlink()
    with pytest.raises(MeasurementError, match=rf"lacks {name}; .*make gpu-campaign"):
        open_recording(stand_in)


def test_a_missing_folder_is_an_error_with_a_remedy(tmp_path):
    with pytest.raises(MeasurementError, match="make gpu-campaign"):
        open_recording(RecordingParams(folder=str(tmp_path / "nowhere"), modelled_device=None))
    for nothing in (None, RecordingParams(folder=None, modelled_device=None)):
        with pytest.raises(MeasurementError, match="fbgemm_cpu or fbgemm_cuda"):
            open_recording(nothing)


@pytest.mark.parametrize(
    ("change", "message"), [({"format": 2}, "format 2"), ({"format": None, "drop": "date"}, "'date'")]
)
def test_a_card_of_another_format_or_without_a_date_is_refused(stand_in, tmp_path, change, message):
    path = tmp_path / "recording/card.json"
    card = json.loads(path.read_text()) | change
    card.pop(card.pop("drop", ""), None)
    path.write_text(json.dumps(card))
    with pytest.raises(MeasurementError, match=message):
        open_recording(stand_in)


def test_a_missing_column_is_named(stand_in, tmp_path):
    recording = open_recording(stand_in)
    recording.costs.drop(columns="backward_ms").to_parquet(tmp_path / "recording/compute_costs.parquet")
    with pytest.raises(MeasurementError, match=r"compute_costs.parquet lacks the column 'backward_ms'"):
        open_recording(stand_in)
