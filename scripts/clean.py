"""Empties folders that runs write (`make clean`). Refuses to do so while a run holds the lock of their data folder.

    python3 scripts/clean.py data/06_models data/h100/06_models

It needs no installed package. The lock is that of `neuroshard_pipeline.run_lock`.
"""

import contextlib
import fcntl
import shutil
import sys
from pathlib import Path

LOCK_FILE = ".run.lock"


def main(folders: list[Path]) -> None:
    """Take the locks of all data folders, then delete what the folders hold, except for .gitkeep."""
    with contextlib.ExitStack() as stack:
        for root in sorted({folder.parent for folder in folders}):
            lock = stack.enter_context((root / LOCK_FILE).open("a+"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                sys.exit(f"a run uses {root}: {lock.read()}. Wait until it has ended, or stop its process")
            stack.callback((root / LOCK_FILE).unlink, missing_ok=True)
        for path in [path for folder in folders for path in folder.iterdir() if path.name != ".gitkeep"]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]])
