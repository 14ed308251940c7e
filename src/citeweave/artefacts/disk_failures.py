"""Disks that are full or fail, told with the path that was written.

with naming_failures(folder):
    file.write(much)            OSError: [Errno 28] No space left on device: 'folder'
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from citeweave.errors import UserError

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_AS_RUST_TELLS = re.compile(r"\(os error (\d{1,3})\)")


@contextmanager
def naming_failures(folder: Path) -> Iterator[None]:
    """Let a failed write name the folder that was written: the system tells no path, and some libraries no OSError."""
    try:
        yield
    except OSError as error:
        if type(error) is OSError and not error.filename:
            error.filename = str(folder)
        raise
    except Exception as error:
        if found := _AS_RUST_TELLS.search(str(error)):
            raise OSError(int(found[1]), os.strerror(int(found[1])), str(folder)) from error
        raise


def unwritable(folder: Path, error: OSError, remedy: str) -> Exception:
    """Why a folder cannot be made: the user's mistake, or a disk that is full or fails."""
    if error.errno in _OF_THE_DISK:
        return OSError(error.errno, error.strerror, str(folder))
    return UserError(f"{folder} cannot be written ({error.strerror}); {remedy}")
