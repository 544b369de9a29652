"""The interpreter of pytest's parallel workers, which are forks of one process with the modules of all tests.

pytest-xdist starts this script with `<name of the server> -u -c <code>`. The first script forks the server, which
imports the modules for seconds of a core. Each script then passes its streams to the server, which forks the worker,
and waits until the worker has ended. The server ends with the last script.
"""

import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import types
import warnings
from multiprocessing import connection
from pathlib import Path

#: What the tests themselves import.
IMPORTED_BY_TESTS = [
    "nbclient",
    "kedro_datasets.plotly",
    "nbformat",
    "plotly.offline",
    "plotly.subplots",
    "scipy.stats",
    "sklearn.ensemble",
]


def _fork() -> bool:
    """Fork the worker. Only the worker, which is a child of the server, returns True."""
    address = f"\0{sys.argv[1]}"  # in no folder, so nothing is left to delete
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(address)
        except OSError:  # another script has started the server
            pass
        else:
            listener.listen()
            if os.fork() == 0:
                return _serve(listener)
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [b"streams"], [0, 1, 2])
        worker = os.pidfd_open(int(server.recv(32)))
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        select.select([worker], [], [])
    return False


def _serve(listener: socket.socket) -> bool:
    from warm import MODULES, start_fork_server

    os.dup2(os.open(os.devnull, os.O_RDWR), 1)  # pytest waits until nobody holds the output of a worker that has ended
    with warnings.catch_warnings(action="ignore"):
        warnings.filterwarnings("error", module="neuroshard_pipeline")  # as in the workers, which import nothing again
        for module in [*MODULES, *IMPORTED_BY_TESTS]:
            importlib.import_module(module)
    gc.collect()
    gc.freeze()
    _use_huge_pages()
    signals = {signal.SIGINT: signal.SIG_IGN, signal.SIGCHLD: signal.SIG_IGN}  # nobody waits for a worker
    before = {number: signal.signal(number, handler) for number, handler in signals.items()}
    scripts: set[socket.socket] = set()
    while True:
        for ready in connection.wait([listener, *scripts]):
            if ready is not listener:
                scripts.remove(ready)
                ready.close()
                continue
            script, _ = listener.accept()
            _, streams, _, _ = socket.recv_fds(script, 32, 3)
            worker = os.fork()
            if worker == 0:
                for number, handler in before.items():
                    signal.signal(number, handler)
                for place, stream in enumerate(streams):
                    os.dup2(stream, place)
                    os.close(stream)
                for opened in (listener, script, *scripts):
                    opened.close()
                start_fork_server()
                return True
            for stream in streams:
                os.close(stream)
            script.send(str(worker).encode())
            scripts.add(script)
        if not scripts:
            os._exit(0)


def _use_huge_pages() -> None:
    """Move the memory of this process to pages of 2 MiB (Linux 6.1), so that each fork copies fewer entries.

    A kernel that cannot do it leaves the memory as it is.
    """
    madvise, size, collapse = ctypes.CDLL(None).madvise, 2**21, 25
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, access, _, _, _, *name = line.split()
        if access == "rw-p" and name in ([], ["[heap]"]):
            first, last = (int(address, 16) for address in span.split("-"))
            for start in range(-(-first // size) * size, last - size + 1, size):
                madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), collapse)


if __name__ == "__main__" and _fork():
    code, sys.argv[:] = sys.argv[-1], ["-c"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    exec(code, vars(sys.modules["__main__"]))
