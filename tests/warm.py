"""Programs that start quickly, because they are forked from a process that has imported the modules of all tests.

A new interpreter takes five seconds of a core to import Kedro, torch and this project. A fork behaves in the same way
afterwards: it has its own arguments, folder, output, process group and exit code. Tests of the imports themselves, and
of what happens when an interpreter ends, must start a new one.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import runpy
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection, forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Modules that the server imports before it forks the programs and worker processes of all tests.
MODULES = [
    "neuroshard_pipeline.measurement.compute_bench",
    "neuroshard_pipeline.measurement.fbgemm",
    "neuroshard_pipeline.measurement.pools",
    "neuroshard_pipeline.sharders.registry",
    "neuroshard_pipeline.torchrec_bridge.planner",
    "neuroshard_pipeline.torchrec_bridge.train_check.steppers",
    "neuroshard_pipeline.torchrec_bridge.moving",
    "neuroshard_pipeline.torchrec_plan.structures",
    "torch.distributed.optim",
    "torchrec.models.dlrm",
    "kedro.framework.cli.cli",
    "neuroshard_pipeline.cli",
    "neuroshard_pipeline.settings",
    "neuroshard_pipeline.pipeline_registry",
    "pytest",
    "scipy.optimize",
    "compiled",
    "neuroshard_pipeline.workers.frozen",
]


@dataclass(frozen=True)
class Done:
    """How a program ended."""

    returncode: int
    stdout: str
    stderr: str


def start(
    arguments: Sequence[object],
    output: Path,
    environment: Mapping[str, str] | None = None,
    namespaces_of: int | None = None,
) -> BaseProcess:
    """Start what `python <arguments>` starts: a module (`-m`, its name, its arguments), or a script with its arguments.

    The program runs in the root of the project and leads a process group. Its streams go to the files `stdout` and
    `stderr` in the folder `output`.

    Args:
        arguments: what follows `python` on a command line.
        output: an existing folder.
        environment: further environment variables.
        namespaces_of: id of a process whose network and clock the program shares; needs Linux and root.
    """
    (output / "stdout").touch()  # so that others may read it at once
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(MODULES)  # has an effect if no server runs yet
    given = ([str(argument) for argument in arguments], output, dict(environment or {}), namespaces_of)
    process = context.Process(target=_run_program, args=given)
    process.start()
    return process


def run(*arguments: object) -> Done:
    """Run a program to its end (see `start`)."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder)
        process = start(arguments, output)
        process.join()
        return Done(
            int(process.exitcode or 0),
            (output / "stdout").read_text(),
            (output / "stderr").read_text(),
        )


def _run_program(arguments: list[str], output: Path, environment: dict[str, str], namespaces_of: int | None) -> None:
    os.setsid()
    os.chdir(ROOT)
    os.environ.update(environment)
    if namespaces_of is not None:
        _enter_namespaces(namespaces_of)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(output / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
    start_fork_server()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


def start_fork_server() -> None:
    """Fork the server of this program's worker processes, which `multiprocessing` would start as a new interpreter.

    It is a child of the program, and ends after the program and its workers. It is forked before the program has
    threads: a process that is forked while a thread holds a lock of the C library would wait for this lock forever.
    """
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


def _enter_namespaces(process: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for kind in ("net", "time"):
        with open(f"/proc/{process}/ns/{kind}") as namespace:
            if libc.setns(namespace.fileno(), 0):
                raise OSError(ctypes.get_errno(), f"cannot enter the {kind} namespace of process {process}")
