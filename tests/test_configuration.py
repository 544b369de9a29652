"""Tests read configuration through caches (tests/kedro_caches.py), which must find what Kedro finds without them."""

from inspect import getcallargs

import kedro_caches
import pytest
from conftest import ROOT
from kedro.config import OmegaConfigLoader
from kedro.io import CachedDataset, MemoryDataset
from omegaconf import OmegaConf

RUNTIME_PARAMS = [
    {"data_root": "/first", "local_world_size": 2, "torchrun_endpoint": "first:1", "plan": {"task": {"world_size": 4}}},
    {"data_root": "/second", "local_world_size": 2, "torchrun_endpoint": "second:2", "unknown": 1},
]


def found(runtime_params: dict) -> dict:
    loader = OmegaConfigLoader(
        str(ROOT / "conf"), env="test", base_env="base", default_run_env="local", runtime_params=runtime_params
    )
    return {name: loader[name] for name in ("globals", "parameters", "catalog")}


def test_cached_configuration_is_that_of_kedro_for_changing_runtime_parameters(monkeypatch):
    cached = [found(params) for params in RUNTIME_PARAMS]
    monkeypatch.setattr(OmegaConfigLoader, "_merge_and_resolve", kedro_caches._resolve)
    monkeypatch.setattr(OmegaConfigLoader, "_soft_merge", staticmethod(kedro_caches._merge))
    monkeypatch.setattr(OmegaConf, "load", staticmethod(kedro_caches._load))
    assert cached == [found(params) for params in RUNTIME_PARAMS]
    assert cached[1]["catalog"]["plan.plan"]["filepath"].startswith("/second/")


@pytest.mark.parametrize("kind", [MemoryDataset, CachedDataset])
def test_the_arguments_of_a_dataset_are_those_that_kedro_notes(kind):
    init = kind.__init__
    for function in (init, init.__wrapped__):
        for args, kwargs in (((1,), {}), ((1,), {"metadata": 2})):
            noted = kedro_caches._call_arguments(function, None, *args, **kwargs)
            assert noted == getcallargs(function, None, *args, **kwargs)
