"""Rewards that a command line names: `my_rewards.py:reward` or `package.module:reward`."""

import difflib
import importlib
import os
import sys
import traceback
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

from ogrpo import system
from ogrpo.rewards.reward import Reward, RewardFn
from ogrpo.system._serve import import_file

_PREFIX = "file_of_rewards_"


def load_reward(spec: str) -> Reward | RewardFn:
    """Return the function, or the `Reward`, that `FILE.py:NAME` or `PACKAGE.MODULE:NAME` names.

    A file's own folder is searched for the modules that the file imports. A module is searched for
    in the current folder too.

    Raises:
        ValueError: there is no such file, module or name; or the import failed, and where.
    """
    source, colon, name = spec.rpartition(":")
    if not colon or not source or not name:
        raise ValueError(f"{spec!r} names no reward; write FILE.py:NAME or PACKAGE.MODULE:NAME.")
    module = _from_file(source) if source.endswith(".py") else _from_module(source)
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            offered = [key for key in vars(module) if not key.startswith("_")]
            raise ValueError(f"{source} has no {name!r}{_nearest(name, offered)}.")
        found = getattr(found, part)
    if not isinstance(found, Reward) and not callable(found):
        raise ValueError(f"{spec} is {type(found).__name__}, not a function.")
    return found


def files_of_rewards() -> dict[str, str]:
    """Return the files that `load_reward` has loaded, by the names of their modules."""
    modules = ((name, module) for name, module in list(sys.modules.items()))
    return {name: str(module.__file__) for name, module in modules if name.startswith(_PREFIX)}


def _from_file(source: str) -> ModuleType:
    path = Path(source).expanduser().resolve()
    if not path.is_file():
        beside = [file.name for file in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise ValueError(f"there is no file {path}{_nearest(path.name, beside)}.")
    name = f"{_PREFIX}{path.stem}_{zlib.crc32(bytes(path)):08x}"
    if name in sys.modules:
        return sys.modules[name]
    return _guarded(lambda: import_file(name, str(path)), str(path))


def _from_module(source: str) -> ModuleType:
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)
    try:
        return _guarded(lambda: importlib.import_module(source), source)
    except ValueError as error:
        missing = error.__cause__
        if isinstance(missing, ModuleNotFoundError) and f"{source}.".startswith(f"{missing.name}."):
            raise ValueError(
                f"there is no module {missing.name!r}, neither installed nor in {folder}; "
                "a file is named with its ending: my_rewards.py:reward."
            ) from missing
        raise


def _guarded(load: Callable[[], ModuleType], source: str) -> ModuleType:
    try:
        return load()
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        what = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
        raise ValueError(
            f"{_where(error) or source}: {source} cannot be imported: {what}"
        ) from error


def _where(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and not _ours(frame.filename)
    ]
    return f"{frames[0].filename}:{frames[0].lineno}" if frames else ""


def _ours(file: str) -> bool:
    rooms = (Path(__file__).parent, Path(system.__file__).parent)
    return file == importlib.__file__ or Path(file).parent in rooms


def _nearest(name: str, offered: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(offered), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
