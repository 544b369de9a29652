"""Compute costs of a modelled GPU (`lab.device`): modelled, not measured."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.lab.device import device_names, lookup_cost_ms, modelled_device
from neuroshard_pipeline.measurement.recording import RecordingParams
from neuroshard_pipeline.tables.samples import ComputeSample


def require_device(params: RecordingParams | None) -> str:
    """Name of the GPU of the backend `modelled`.

    Raises:
        MeasurementError: none is given.
    """
    if params is None or params.modelled_device is None:
        raise MeasurementError(
            "backend modelled needs recording.modelled_device, the name of a modelled GPU; it is null. "
            f"Set it to one of {', '.join(device_names())}, or measure with the backend fbgemm_cpu or fbgemm_cuda"
        )
    return params.modelled_device


def modelled_hardware(name: str) -> dict[str, object]:
    """The part of `measure.hardware` that describes a modelled GPU: its data sheet and the fitted numbers."""
    return {"device": "cuda", "gpu_model": f"{name} (modelled)", "modelled_device": modelled_device(name).model_dump()}


def modelled_costs(samples: Sequence[ComputeSample], name: str) -> pd.DataFrame:
    """Modelled costs of samples, in the same columns as measured costs; no sample fails.

    Raises:
        MeasurementError: no modelled GPU has that name.
    """
    device = modelled_device(name)
    costs = [lookup_cost_ms(sample.shards, sample.batch_size, sample.optimizer, device) for sample in samples]
    forward_ms, backward_ms = np.array(costs, dtype=np.float64).reshape(-1, 2).T
    return pd.DataFrame(
        {
            "sample_id": pd.Series([sample.sample_id for sample in samples], dtype=object),
            "forward_ms": forward_ms,
            "backward_ms": backward_ms,
            "spread_ms": np.full(len(samples), np.nan),
            "repeats": np.zeros(len(samples), dtype=np.int64),
            "error": np.full(len(samples), None, dtype=object),
        }
    )
