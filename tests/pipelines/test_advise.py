"""`kedro run --pipeline advise` with the shipped models of the H100 and a file of ids."""

import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, bootstrap, quick_search
from kedro.framework.session import KedroSession

BATCH = 4096


def write_inputs(folder):
    """Two tables, and ids of one batch: one or two ids per sample, and a few bags of 40."""
    rng = np.random.default_rng(0)
    counts = {"short": rng.integers(1, 3, BATCH), "long": np.where(rng.random(BATCH) < 0.1, 40, 2)}
    lists = [pa.array([rng.integers(0, 1000, n).tolist() for n in of]) for of in counts.values()]
    pq.write_table(pa.table(lists, names=list(counts)), folder / "ids.parquet")
    tables = pd.DataFrame({"table": list(counts), "num_embeddings": 1000, "embedding_dim": 4, "pooling_factor": 1.0})
    tables.to_csv(folder / "tables.csv", index=False)
    return counts


def test_ids_give_lengths_and_the_advice_is_stored_and_printed(tmp_path, capfd):
    counts = write_inputs(tmp_path)
    task = {"tables": str(tmp_path / "tables.csv"), "ids": str(tmp_path / "ids.parquet"), "num_batches": 1}
    task |= {"world_size": 2, "batch_size": BATCH, "memory_gib": 1.0}
    bootstrap()
    params = {"data_root": str(tmp_path / "data"), "plan": {"task": task}, "search": quick_search()}
    with KedroSession.create(project_path=ROOT, env="h100", runtime_params=params) as session:
        session.run(pipeline_names=["advise"])
    (stored,) = (tmp_path / "data").rglob("advice_table.txt/*/advice_table.txt")
    assert stored.read_text() in capfd.readouterr().out
    (frame,) = (tmp_path / "data").rglob("advice.parquet/*/advice.parquet")
    lines = pd.read_parquet(frame)
    assert {"today", "half-precision communication", "world_size 4"} <= set(lines["name"])
    sampling = lines[lines["topic"] == "fewer ids per bag"]
    assert sampling["setting"].str.contains("long: at most 2").any()
    for _, sampled in sampling.iterrows():
        limits = dict(re.findall(r"(\w+): at most (\d+)", sampled["setting"]))
        lost = sum(np.maximum(counts[name] - int(limit), 0).mean() for name, limit in limits.items())
        assert lost == pytest.approx(sampled["given_up"], rel=1e-6)
    (page,) = (tmp_path / "data").rglob("advice.html/*/advice.html")
    assert "What would make this step faster?" in page.read_text()
