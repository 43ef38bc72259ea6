"""A full disk or a power cut leaves of a buffer all that was acknowledged, and no half of it."""

import errno
import os
import resource
import stat
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

from ogrpo.data.replay import segments
from ogrpo.system import lock
from tests.data.replay.make import expected, held_by, opened, versioned


class PowerCut(BaseException):
    """The machine is off."""


class Disk:
    """A folder's content on the disk: what was synchronised, and nothing else.

    A file's content is there once the file was synchronised, a name once its folder was. A disk may
    hold more: with `early_names` it has every name at once, over files as they were synchronised.

    `found` is what the next start finds: as at the cut, whatever the process did afterwards.
    """

    def __init__(self, root: Path, survived: Path, patch, cut_at: int, *, early_names: bool):
        self.root, self.survived, self._left = root, survived, cut_at
        self._early_names = early_names
        self._files: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {root.stat().st_ino: {}}
        self._sync, self._replace = os.fsync, os.replace
        patch.setattr(os, "fsync", self._fsynced)
        patch.setattr(os, "replace", self._replaced)

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0:
            self.cut()
            raise PowerCut

    def cut(self) -> None:
        if not self.survived.exists():
            self._restore(self.root, self.survived)

    def _fsynced(self, handle: int) -> None:
        self._step()
        self._sync(handle)
        status = os.fstat(handle)
        path = Path(f"/proc/self/fd/{handle}")
        if stat.S_ISDIR(status.st_mode):
            self._names[status.st_ino] = {x.name: x.stat().st_ino for x in path.resolve().iterdir()}
        else:
            self._files[status.st_ino] = path.read_bytes()

    def _replaced(self, source: Path, target: Path) -> None:
        self._step()
        self._replace(source, target)

    def _restore(self, source: Path, target: Path) -> None:
        target.mkdir()
        now = {x.name: x for x in source.iterdir()}
        kept = self._names.get(source.stat().st_ino, {})
        for name in now if self._early_names else kept:
            path = now.get(name)
            assert path is not None, "no file of the buffer loses its name again"
            if path.is_dir():
                self._restore(path, target / name)
            else:
                (target / name).write_bytes(self._files.get(path.stat().st_ino, b""))


def lived(folder):
    """A run with a state in the middle; what is acknowledged, and the state, as it goes."""
    buffer, state = opened(folder, segment_groups=2), None
    for n in range(7):
        buffer.insert(versioned([n]))
        if n == 4:
            state = buffer.state()
        yield buffer.acknowledged, state


@pytest.mark.parametrize("early_names", [False, True])
def test_a_power_cut_at_any_moment_loses_nothing_that_was_acknowledged(tmp_path, early_names):
    folder = Path("run") / "experience"
    for moment in count():
        root, survived = tmp_path / f"{moment}", tmp_path / f"{moment}-found"
        root.mkdir()
        acknowledged = [(0, None)]
        with pytest.MonkeyPatch.context() as patch, suppress(PowerCut):
            disk = Disk(root, survived, patch, moment, early_names=early_names)
            acknowledged.extend(lived(root / folder))
            disk.cut()
        safe, state = acknowledged[-1]
        whole = held_by(opened(survived / folder))
        assert whole == expected(range(len(whole)))
        assert len(whole) >= safe
        if state is not None:
            assert held_by(opened(survived / folder, state=state)) == expected(range(5))
        if len(acknowledged) == 1 + 7:  # it came to its end
            break
    assert safe == 7
    assert moment == 2 + 3 * 4  # the names of two folders, and three calls for each segment


@contextmanager
def files_of_at_most(size):
    """Stands for a full disk: the kernel refuses the rest of a real write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_in_the_middle_of_a_segment_costs_nothing_that_was_given(tmp_path):
    opened(tmp_path / "whole", range(4), segment_groups=3).flush()
    first, second = segments.listed(tmp_path / "whole")
    whole = second.file.stat().st_size
    for size in (0, 1, whole // 2, whole - 1):
        folder = tmp_path / f"{size}"
        buffer = opened(folder, range(4), segment_groups=3)
        for _ in range(2):
            with pytest.raises(OSError, match=os.strerror(errno.EFBIG)), files_of_at_most(size):
                buffer.state()
            assert (buffer.acknowledged, len(buffer)) == (3, 4)
            # And no part of the second.
            assert {x.name for x in folder.iterdir()} == {first.file.name, lock.NAME}
        buffer.insert(versioned([4]))
        buffer.state()
        assert buffer.acknowledged == 5
        assert held_by(opened(folder)) == expected(range(5))
