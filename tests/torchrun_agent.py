"""torchrun for `warm.start`, with `--start-method forkserver`: its ranks are forks that have imported all modules.

The ranks are not forks of the agent. A thread of the agent serves torchrun's store and resolves the names of hosts that
connect. A rank that is forked at that moment inherits a lock of the C library that nobody releases, and waits for it
when it resolves a name itself. The server that forks the ranks is therefore forked before the agent has threads.

torchrun names its events after the calling function, which it looks up with `inspect.stack`. That searches thousands of
modules several times a second. The lookup below has the same result.
"""

from __future__ import annotations

import os
import socket
import sys
from multiprocessing import connection, forkserver

from torch.distributed.elastic.rendezvous import dynamic_rendezvous
from torch.distributed.run import main


def start_fork_server() -> None:
    """Start what `multiprocessing` would start as a new interpreter; it ends after this process and its ranks."""
    server = forkserver._forkserver
    address = connection.arbitrary_address("AF_UNIX")
    ends_with, alive = os.pipe()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(alive)
                forkserver.main(listener.fileno(), ends_with, [])
            finally:
                os._exit(0)
    os.close(ends_with)
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, alive, pid


if __name__ == "__main__":  # ranks import this file under another name
    start_fork_server()
    dynamic_rendezvous.get_method_name = lambda depth=2: sys._getframe(depth).f_code.co_name
    main()
