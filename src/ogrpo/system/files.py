"""Files that are whole or absent, and JSON that is refused by its file's name.

Everything that a run leaves under a fixed name is written by `replacing`: into a file beside it,
which is synchronised, given the permissions that the user's umask says, and renamed. A reader sees
the old content or the new one, after a crash, a full disk or a power cut too.
"""

import errno
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NoReturn

DEEPEST = 100
"""Levels of nesting that JSON may have: far more than any file of ours, far fewer than a stack."""
LONGEST_NUMBER = 400
"""Characters of a number: the largest float has 309 digits before its point."""
LARGEST = 1 << 28
"""Bytes of a JSON file: eight times the largest tokenizers."""
_DRAFT = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")
Record = dict[str, Any]
"""A JSON object: a line of metrics.jsonl."""


@contextmanager
def replacing(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Opens a file that takes the place of `path` once it is whole; an error changes nothing.

    Args:
      path: the name; its folder exists.
      mode: "w" for UTF-8 text, "wb" for bytes.

    Raises:
      OSError: the folder cannot be written, or the disk is full; names the file.
    """
    encoding = None if "b" in mode else "utf-8"
    with replacing_file(path) as draft, draft.open(mode, encoding=encoding) as file:
        yield file


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """Yields the draft's name, for writers that open the file themselves.

    Such a writer may choose other permissions; the file gets those of the user's umask.

    Raises:
      OSError: as `replacing`.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with draft.open("xb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        yield draft
        draft.chmod(mode)
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink()
        if not isinstance(error, OSError) or error.errno is None:
            raise
        # A full disk names no file, other errors name the draft.
        raise type(error)(error.errno, error.strerror, str(path)) from error
    sync_folder(path.parent)


def is_draft(name: str) -> bool:
    """Whether a file's name is that of a draft whose writer was killed."""
    return _DRAFT.fullmatch(name) is not None


def drop_drafts(*folders: Path) -> int:
    """Deletes drafts that killed writers left in folders; returns how many.

    Raises:
      OSError: one cannot be deleted.
    """
    drafts = [file for folder in folders for file in folder.glob(".*.tmp") if is_draft(file.name)]
    for file in drafts:
        file.unlink(missing_ok=True)
    return len(drafts)


def write_text(path: Path, text: str) -> None:
    """Writes a text file, whole or not at all."""
    with replacing(path) as file:
        file.write(text)


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file, whole or not at all.

    Raises:
      ValueError: the value has NaN or infinity, which JSON does not know.
    """
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def sync_folder(folder: Path) -> None:
    """Syncs the names in a folder: a rename is on disk only after this."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Makes a folder and syncs its name: no file in it lasts longer than that."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in reversed(missing):
        sync_folder(each.parent)


def remedy(error: OSError) -> str:
    """Returns what helps where a file or folder cannot be written; empty where not known."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if error.errno in full or "No space left" in str(error):  # from Rust there is no number
        return "free space there (or raise the quota)"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "let it be written to, or choose another folder"
    return ""


def describe(error: OSError) -> str:
    """Returns a system error's message: the file, the reason and a remedy."""
    words = (error.filename, error.strerror or str(error), remedy(error))
    return ": ".join(str(word) for word in words if word)


def read_json(path: Path) -> Any:
    """Reads the value of a JSON file.

    Raises:
      OSError: the file cannot be read.
      ValueError: it is not JSON, or JSON that we do not take (see `parse_json`); names the file.
    """
    return parse_json(read_text(path), str(path))


def read_object(path: Path, expected: str = "") -> dict[str, Any]:
    """Reads the object of a JSON file.

    Raises:
      OSError: the file cannot be read.
      ValueError: it is missing (and `expected` says where it belongs), is not JSON or no object;
        names the file.
    """
    if not path.is_file():
        raise ValueError(f"{path} is missing{expected}")
    value = read_json(path)
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(value).__name__}")
    return value


def read_text(path: Path, most: int = LARGEST) -> str:
    """Reads the content of a text file.

    Raises:
      OSError: the file cannot be read.
      ValueError: it is not UTF-8, or has more than `most` bytes; names the file.
    """
    with path.open("rb") as file:
        raw = file.read(most + 1)
    if len(raw) > most:
        raise ValueError(f"{path} has more than {most} bytes, which is more than any such file has")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8") from error


def parse_json(text: str, where: str) -> Any:
    """Parses a JSON text by RFC 8259, and refuses what our readers cannot use.

    Args:
      text: what is parsed.
      where: the file, line or message it is from, for errors.

    Raises:
      ValueError: the text is not JSON, has NaN or infinity, is nested deeper than `DEEPEST`, has a
        number longer than `LONGEST_NUMBER` or beyond every float, half of a surrogate pair, which
        is no character, or an object that says two things of one name.
    """

    def number(kind: type[int] | type[float], digits: str) -> int | float:
        if len(digits) > LONGEST_NUMBER:
            raise ValueError(f"{where} has a number of {len(digits)} characters: {digits[:20]}...")
        value = kind(digits)
        if abs(value) == float("inf"):
            raise ValueError(f"{where} has {digits:.40}, a number beyond the largest")
        return value

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            for name, value in pairs:
                if table[name] != value:
                    raise ValueError(f"{where} has {name!r:.60} twice in one object: keep one")
        return table

    def constant(name: str) -> NoReturn:
        raise ValueError(f"{where} has {name}, which JSON does not know: use null or a number")

    nested = f"{where} is nested deeper than {DEEPEST} levels"
    try:
        value = json.loads(
            text,
            object_pairs_hook=unique,
            parse_constant=constant,
            parse_int=lambda digits: number(int, digits),
            parse_float=lambda digits: number(float, digits),
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError(nested) from error
    if text.count("[") + text.count("{") > DEEPEST and _is_deep(value):
        raise ValueError(nested)
    if "\\u" in text:  # an escape alone can write half of a pair
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):04x}"
            raise ValueError(f"{where} has half of a surrogate pair ({half})") from error
    return value


def _is_deep(value: Any) -> bool:
    """Whether a value is nested deeper than `DEEPEST` levels."""
    tables = [value] if isinstance(value, dict | list) else []
    for _ in range(DEEPEST):
        rows = (table.values() if isinstance(table, dict) else table for table in tables)
        tables = [x for row in rows for x in row if isinstance(x, dict | list)]
        if not tables:
            return False
    return True
