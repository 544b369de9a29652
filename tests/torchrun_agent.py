"""torchrun for a warm process, whose thousands of modules make one of its habits expensive.

torchrun names its events after the calling function, which it looks up with `inspect.stack`. That searches all imported
modules several times a second. The lookup below has the same result.
"""

from __future__ import annotations

import sys

from torch.distributed.elastic.rendezvous import dynamic_rendezvous
from torch.distributed.run import main

dynamic_rendezvous.get_method_name = lambda depth=2: sys._getframe(depth).f_code.co_name
main()
