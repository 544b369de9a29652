"""TorchRec, an optional dependency: it is imported on first use, with a clear error if it is missing."""

import importlib
import warnings

from neuroshard_pipeline.errors import NeuroShardError


class TorchRecMissingError(NeuroShardError):
    """TorchRec, an optional dependency, cannot be imported."""


def require_torchrec() -> None:
    """Import TorchRec and suppress the warnings that TorchRec and FBGEMM emit during their import.

    Raises:
        TorchRecMissingError: TorchRec cannot be imported; the message names the extra to install.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            importlib.import_module("torchrec.distributed")
        except (ImportError, OSError) as error:
            raise TorchRecMissingError(
                f"TorchRec cannot be imported ({error}); install the extra 'torchrec' as the README describes"
            ) from error
