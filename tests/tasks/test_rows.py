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
    assert all([row.columns for row in each] == rows for each in read.values())
    places = [each[1].source.removeprefix(str(tmp_path)) for each in read.values()]
    assert places == ["/own.jsonl:2", "/own.json:entry 2", "/own.parquet:row 2"]
    text = json.dumps(GOOD).encode()  # a byte order mark and other line ends do no harm
    assert len(read_rows(jsonl(tmp_path, b"\xef\xbb\xbf" + text + b"\r", text + b"\r", ""))) == 2


BAD = [
    ("own.jsonl", b"{}\n\n{}\n", r":2: the line is empty"),
    ("own.jsonl", b'{}\n{"prompt": "How', r":2 is not JSON"),
    ("own.jsonl", b"{}\n[1]\n{}\n", r":2: list; give a JSON object"),
    ("own.jsonl", b'{}\n{"prompt": "\xff"}', r":2 is not UTF-8"),
    ("own.json", b"[{}, 3]", ":entry 2: int; give a JSON object"),
    ("own.parquet", b"no Parquet, this", " is not a Parquet file"),
    ("own.csv", b"a,b\n1\n", ":2 has 1 cells for 2 columns"),
    ("own.jsonl", b"", ":1: the line is empty.*the file is empty"),
    ("own.txt", b"", r": give a file that ends in one of \['\.csv'"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD)
def test_a_file_that_is_wrong_is_named_with_its_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}{message}"):
        read_rows(tmp_path / name)


def test_empty_and_missing_files_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"gone\.jsonl is not there"):
        read_rows(tmp_path / "gone.jsonl")
    with pytest.raises(ValueError, match="gone is not there"):
        read_rows(tmp_path / "gone")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ValueError, match=r"folder\.json is a folder; give a file"):
        read_rows(tmp_path / "folder.json")
    with pytest.raises(ValueError, match=r"dataset\.to_parquet\('own\.parquet'\)"):
        read_rows(tmp_path)
    file = tmp_path / "own.parquet"
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), file)
    with pytest.raises(ValueError, match=r"own\.parquet has no rows"):
        read_rows(file)


def test_rows_of_an_iterable_are_numbered():
    assert [row.source for row in mapping_rows(iter([GOOD, GOOD]), "mine")] == ["mine:1", "mine:2"]
    with pytest.raises(ValueError, match="mine has no rows"):
        list(mapping_rows([], "mine"))
    with pytest.raises(ValueError, match="mine:2: str; give a JSON object"):
        list(mapping_rows([GOOD, "How many ?"], "mine"))


def test_comma_separated_values_are_texts(tmp_path):
    file = tmp_path / "own.csv"
    file.write_text('prompt,answer\n"Two\nlines, \u2028 of one",012\n"say ""hi""",\n', "utf-8")
    first, second = read_rows(file)
    assert first.columns == {"prompt": "Two\nlines, \u2028 of one", "answer": "012"}
    assert second == ({"prompt": 'say "hi"', "answer": ""}, f"{file}:4")
    file.write_text(f"prompt,answer\n{'a' * 200_000},1\n", "utf-8")
    assert len(read_rows(file)[0].columns["prompt"]) == 200_000
