"""torchrun for `warm.start`, with `--start-method forkserver`: its ranks are forks that have imported all modules.

The ranks are not forks of the agent. A thread of the agent serves torchrun's store and resolves the names of hosts that
connect. A rank that is forked at that moment inherits a lock of the C library that nobody releases, and waits for it
when it resolves a name itself. `warm.start` therefore forks the server of the ranks before the agent has threads.

torchrun names its events after the calling function, which it looks up with `inspect.stack`. That searches thousands of
modules several times a second. The lookup below has the same result.
"""

from __future__ import annotations

import sys

from torch.distributed.elastic.rendezvous import dynamic_rendezvous
from torch.distributed.run import main

if __name__ == "__main__":  # ranks import this file under another name
    dynamic_rendezvous.get_method_name = lambda depth=2: sys._getframe(depth).f_code.co_name
    main()
