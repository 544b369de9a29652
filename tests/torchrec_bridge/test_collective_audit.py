"""TorchRec's collectives on virtual ranks are those that the lab, the search and the step's work count, to the byte."""

from __future__ import annotations

import pytest
from torchrec_bridge.needs_torchrec import QUIET

# isort: split
from audit_collectives import Logged, audited, logged_plans

from neuroshard_pipeline.search.plan import Plan

pytestmark = [pytest.mark.slow, *QUIET]


@pytest.fixture(scope="module")
def logged() -> list[tuple[Plan, Logged]]:
    return list(logged_plans(4, 2, ("fp16",)))


def test_every_sharding_type_exchanges_what_the_formulas_say(logged):
    table = audited(logged)
    assert len(table) == 6
    assert (table["collectives"] > 4).all()
    assert not any(table["first"]), table["first"].tolist()


def test_a_formula_that_is_wrong_is_found(logged, monkeypatch):
    monkeypatch.setattr("neuroshard_pipeline.lab.exchange.LENGTH_BYTES", 8)
    monkeypatch.setattr("neuroshard_pipeline.search.volumes._ID_BYTES", 4)
    table = audited(logged)
    assert (table[["lab", "volumes"]] > 0).all(axis=None)
    assert not table[["reductions", "work"]].any(axis=None)
