"""Import this first in a test module that needs TorchRec: it skips the module if TorchRec is not installed."""

from __future__ import annotations

import pytest

from neuroshard_pipeline.torchrec_plan.extra import TorchRecMissingError, require_torchrec

try:
    require_torchrec()
except TorchRecMissingError as error:
    pytest.skip(str(error), allow_module_level=True)

#: Marks that silence warnings which TorchRec, FBGEMM and torch.distributed emit in correct use.
QUIET = [
    pytest.mark.filterwarnings("ignore:::torchrec"),
    pytest.mark.filterwarnings("ignore:::fbgemm_gpu"),
    pytest.mark.filterwarnings("ignore:`torch.jit.[a-z]+` is deprecated:DeprecationWarning"),
]
