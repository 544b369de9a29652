"""Imports TorchRec before any test module here does, without the warnings of its import, which would fail the tests."""

from contextlib import suppress

from neuroshard_pipeline.torchrec_plan.extra import TorchRecMissingError, require_torchrec

with suppress(TorchRecMissingError):
    require_torchrec()
