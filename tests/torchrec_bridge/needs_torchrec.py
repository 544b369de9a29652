"""Import this first in a test module that needs TorchRec: skips the module with a reason where there is none."""

from __future__ import annotations

import pytest

from neuroshard_pipeline.sharders.torchrec import TorchRecMissingError, require_torchrec

try:
    require_torchrec()
except TorchRecMissingError as error:
    pytest.skip(str(error), allow_module_level=True)

#: What TorchRec, FBGEMM and torch.distributed warn of while they do what they are asked.
QUIET = [
    pytest.mark.filterwarnings("ignore:::torchrec"),
    pytest.mark.filterwarnings("ignore:::fbgemm_gpu"),
    pytest.mark.filterwarnings("ignore:`torch.jit.[a-z]+` is deprecated:DeprecationWarning"),
]
