"""Files are whole or absent; JSON is refused by its file's name."""

import errno
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogrpo.system.files import read_json, replacing, replacing_file, write_json, write_text


def test_an_error_in_the_middle_leaves_the_old_content_and_nothing_beside_it(tmp_path):
    file = tmp_path / "config.json"
    write_json(file, {"kept": True})
    full = pytest.raises(OSError, match=r"No space left.*/config.json")
    with full, replacing(file) as out:
        out.write("half of")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(ValueError, match="JSON"):
        write_json(file, float("nan"))
    assert read_json(file) == {"kept": True}
    assert [each.name for each in tmp_path.iterdir()] == ["config.json"]


def test_a_file_is_synchronised_before_its_name_and_the_name_after(tmp_path, monkeypatch):
    order, sync, replace = [], os.fsync, os.replace

    def watched_sync(handle):
        order.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    def watched_replace(source, target):
        order.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(os, "replace", watched_replace)
    write_text(tmp_path / "x", "x")
    assert order == ["file", "rename", "folder"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "nested deeper than 100"),
        ('{"a":' * 100_000, "nested deeper than 100"),
        ("1" * 5000, "a number of 5000 characters: 11111"),
        ("NaN", "NaN, which JSON does not know"),
        ("[-Infinity]", "-Infinity"),
        (r'"\ud800"', r"half of a surrogate pair \(\\ud800\)"),
        (r'{"\udc00": 1}', r"half of a surrogate pair \(\\udc00\)"),
        ("[1e400]", "1e400, a number beyond the largest"),
        ('{"a": 1, "a": 2}', "'a' twice in one object"),
        ('[{"b": {"a": 1, "a": null}}]', "'a' twice"),
        ("{", "not JSON"),
        ("", "not JSON"),
    ],
)
def test_what_no_reader_can_use_is_refused_by_the_files_name(tmp_path, text, reason):
    file = tmp_path / "odd.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=reason) as caught:
        read_json(file)
    assert str(file) in str(caught.value)


def test_a_writer_of_its_own_replaces_a_file_whole_with_the_users_permissions(tmp_path):
    file = tmp_path / "model"
    before = os.umask(0o027)
    try:
        with replacing_file(file) as draft:
            draft.write_bytes(b"new")
            draft.chmod(0o600)  # as the writer of safetensors does
    finally:
        os.umask(before)
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"new", 0o640)


FINITE = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_what_is_written_is_read(tmp_path_factory, value):
    file = tmp_path_factory.getbasetemp() / "round.json"
    write_json(file, value)
    assert read_json(file) == value
