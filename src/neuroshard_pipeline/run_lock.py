"""Lets one run at a time write to a data folder; runs of the pipelines in `UNLOCKED` may write beside it.

Two runs at once would mix the versions of their datasets, and each would distort the timings of the other.
"""

import fcntl
import json
import os
import shlex
import socket
import sys
import threading
from collections.abc import Generator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from kedro.framework.hooks import hook_impl
from kedro.io import CatalogProtocol
from kedro.pipeline import Pipeline

from neuroshard_pipeline.errors import NeuroShardError

LOCK_FILE = ".run.lock"
#: Namespaces of pipelines that need no lock. They take seconds, determine at their start which versions they read,
#: and write nothing that another pipeline reads.
UNLOCKED = {"plan", "report"}


class DataFolderError(NeuroShardError):
    """The data folder cannot be written."""


class DataFolderInUseError(NeuroShardError):
    """Another run uses the data folder."""


class RunLock:
    """The lock of one data folder.

    The operating system locks a file, and releases the lock when the process ends, however it ends. The file states the
    process, host, command and start time of the run that holds the lock.

    Raises:
        DataFolderInUseError: another run holds the lock; the message repeats the file and states the remedy.
        DataFolderError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK_FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = _open_locked(self._path)
        except OSError as problem:
            remedy = "correct its permissions, or choose another folder with --params data_root=FOLDER"
            raise DataFolderError(
                f"the data folder {folder} cannot be written ({problem.strerror}); {remedy}"
            ) from problem
        self._file.truncate(0)
        started = datetime.now(UTC).isoformat(timespec="seconds")
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "command": command, "started": started}
        json.dump(holder, self._file)
        self._file.flush()

    def close(self) -> None:
        """Let other runs use the folder."""
        self._path.unlink(missing_ok=True)
        self._file.close()


class LockHooks:
    """Hold the lock of the data folder for the duration of a run, unless all nodes of the run are in `UNLOCKED`.

    Processes that a run starts, and ranks that torchrun starts for it, take no lock of their own.
    """

    def __init__(self) -> None:
        self._held = threading.local()  # Kedro executes a run in the thread that starts it

    @hook_impl(wrapper=True)
    def before_pipeline_run(self, pipeline: Pipeline, catalog: CatalogProtocol) -> Generator[None, Any, Any]:
        """Take the lock before any other hook, and give it back if another hook refuses the run.

        Raises:
            DataFolderInUseError: another run uses the data folder.
            DataFolderError: the folder cannot be written.
        """
        self.after_pipeline_run()  # Kedro reports no end of a run that was interrupted, for example in a notebook
        if any(str(node.namespace).partition(".")[0] not in UNLOCKED for node in pipeline.nodes):
            self._held.lock = RunLock(Path(catalog.load("data_root")))
        try:
            return (yield)
        except BaseException:
            self.after_pipeline_run()
            raise

    @hook_impl(trylast=True)
    def after_pipeline_run(self) -> None:
        """Give the lock back after all other hooks, also those of a failed run."""
        lock: RunLock | None = getattr(self._held, "lock", None)
        self._held.lock = None
        if lock is not None:
            lock.close()

    on_pipeline_error = after_pipeline_run


def _open_locked(path: Path) -> TextIO:
    """Open a file and lock it."""
    while True:
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                file.seek(0)
                raise DataFolderInUseError(_in_use(path.parent, file.read())) from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # its last holder has deleted this file after it was opened here


def _in_use(folder: Path, holder: str) -> str:
    """The message about a folder whose lock file has the content `holder`."""
    run = "another run"
    with suppress(ValueError, KeyError):  # the other run has not written the file yet
        run = "another run: process {pid} on {host}, started at {started} with `{command}`".format(**json.loads(holder))
    remedy = "Wait until that run has ended, stop its process, or give this run a folder with --params data_root=..."
    return f"the data folder {folder} is in use by {run}. {remedy}"
