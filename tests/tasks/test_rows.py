import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ogrpo.tasks.rows import mapping_rows, read_rows

GOOD = {"prompt": "How many ?", "answer": "2"}


def jsonl(tmp_path, *lines):
    file = tmp_path / "own.jsonl"
    file.write_bytes(b"\n".join(x if isinstance(x, bytes) else x.encode() for x in lines))
    return file


def test_the_three_kinds_of_files_hold_the_same_rows(tmp_path):
    rows = [GOOD, {"prompt": "Zoé\N{LINE SEPARATOR}日本 ?", "answer": "3"}]
    jsonl(tmp_path, *(json.dumps(row, ensure_ascii=False) for row in rows), "")
    (tmp_path / "own.json").write_text(json.dumps(rows, indent=1))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "own.parquet")
    read = {end: read_rows(tmp_path / f"own{end}") for end in (".jsonl", ".json", ".parquet")}
    for found in read.values():
        assert [row.columns for row in found] == rows
    places = {end: found[1].source.removeprefix(str(tmp_path)) for end, found in read.items()}
    assert places == {
        ".jsonl": "/own.jsonl:2",
        ".json": "/own.json:entry 2",
        ".parquet": "/own.parquet:row 2",
    }


def test_a_byte_order_mark_and_other_line_ends_do_no_harm(tmp_path):
    text = json.dumps(GOOD).encode()
    assert len(read_rows(jsonl(tmp_path, b"\xef\xbb\xbf" + text + b"\r", text + b"\r", ""))) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "the line is empty"),
        ('{"prompt": "How', "is not JSON"),
        ("[1]", "list; give a JSON object"),
        ("3", "int; give a JSON object"),
        (b'{"prompt": "\xff"}', "is not UTF-8"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    with pytest.raises(ValueError, match=rf"own\.jsonl:2:? {message}"):
        read_rows(jsonl(tmp_path, json.dumps(GOOD), line, json.dumps(GOOD), ""))


def test_empty_and_missing_files_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"own\.jsonl:1: the line is empty.*the file is empty"):
        read_rows(jsonl(tmp_path))
    with pytest.raises(ValueError, match=r"gone\.jsonl is not there"):
        read_rows(tmp_path / "gone.jsonl")
    with pytest.raises(ValueError, match=r"own\.txt: give a file that ends in one of \['\.json'"):
        read_rows(tmp_path / "own.txt")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ValueError, match=r"folder\.json is a folder; give a file"):
        read_rows(tmp_path / "folder.json")


def test_json_that_is_no_list_of_objects_is_an_error(tmp_path):
    file = tmp_path / "own.json"
    for content in ("{}", "[]", "3"):
        file.write_text(content)
        with pytest.raises(ValueError, match=r"own\.json: .*give a list of JSON objects"):
            read_rows(file)
    file.write_text("[{}, 3]")
    with pytest.raises(ValueError, match=r"own\.json:entry 2: int; give a JSON object"):
        read_rows(file)


def test_parquet_that_is_none_or_empty_is_an_error(tmp_path):
    file = tmp_path / "own.parquet"
    file.write_text("no Parquet, this")
    with pytest.raises(ValueError, match=r"own\.parquet is not a Parquet file"):
        read_rows(file)
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), file)
    with pytest.raises(ValueError, match=r"own\.parquet has no rows"):
        read_rows(file)


def test_rows_of_an_iterable_are_numbered():
    assert [row.source for row in mapping_rows(iter([GOOD, GOOD]), "mine")] == ["mine:1", "mine:2"]
    with pytest.raises(ValueError, match="mine has no rows"):
        list(mapping_rows([], "mine"))
    with pytest.raises(ValueError, match="mine:2: str; give a JSON object"):
        list(mapping_rows([GOOD, "How many ?"], "mine"))
