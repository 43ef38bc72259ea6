import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ogrpo.rewards.exact_match import ExactMatch
from ogrpo.tasks import Task
from ogrpo.tasks.rows import is_rows, mapping_rows, read_rows

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
    with pytest.raises(ValueError, match=r"own\.txt: give a file that ends in one of \['\.csv'"):
        read_rows(tmp_path / "own.txt")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(
        ValueError, match=r"folder\.json is a folder without state\.json: give a file"
    ):
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


def save_to_disk(folder, rows):
    """Leave what `datasets.Dataset.save_to_disk` leaves, in two data files."""
    folder.mkdir(parents=True)
    table = pa.Table.from_pylist(rows)
    names = [f"data-0000{n}-of-00002.arrow" for n in range(2)]
    for name, part in zip(names, (table.slice(0, 2), table.slice(2)), strict=True):
        with (
            pa.OSFile(str(folder / name), "wb") as sink,
            pa.ipc.new_stream(sink, table.schema) as out,
        ):
            out.write_table(part)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "7"}
    (folder / "state.json").write_text(json.dumps(state))
    return folder


def test_a_folder_of_save_to_disk_is_read(tmp_path):
    rows = [{"prompt": f"{n} + 1 ?", "answer": str(n + 1)} for n in range(5)]
    folder = save_to_disk(tmp_path / "saved", rows)
    read = read_rows(folder)
    assert [row.columns for row in read] == rows
    assert read[4].source == f"{folder}:row 5"
    assert is_rows(str(folder))
    (folder / "data-00001-of-00002.arrow").write_bytes(b"ARROW1 not")
    with pytest.raises(
        ValueError, match=r"00001-of-00002\.arrow is no Arrow file, or a damaged one"
    ):
        read_rows(folder)
    (folder / "state.json").write_text('{"_data_files": [{"filename": "../secret.arrow"}]}')
    with pytest.raises(ValueError, match=r"'\.\./secret\.arrow', which is not in this folder"):
        read_rows(folder)
    with pytest.raises(ValueError, match=r"is a folder without state\.json: give a file"):
        read_rows(tmp_path)


def test_a_folder_with_splits_is_read_as_a_task_and_its_splits_alone(tmp_path):
    folder = tmp_path / "both"
    for name, begin in (("train", 0), ("test", 9)):
        rows = [{"prompt": f"{n} + 1 ?", "answer": str(n + 1)} for n in range(begin, begin + 4)]
        save_to_disk(folder / name, rows)
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    task = Task.from_file(folder, rewards=[ExactMatch()])
    assert (task.name, len(task), len(task.heldout)) == ("both", 4, 4)
    assert task.heldout[0].prompt == "9 + 1 ?"
    assert is_rows(str(folder))
    with pytest.raises(
        ValueError, match=r"holds the splits \['train', 'test'\]: name one, such as"
    ):
        read_rows(folder)


def test_comma_separated_values_are_texts(tmp_path):
    file = tmp_path / "own.csv"
    file.write_text('prompt,answer\n"Two\nlines, \u2028 of one",012\n"say ""hi""",\n', "utf-8")
    first, second = read_rows(file)
    assert first.columns == {"prompt": "Two\nlines, \u2028 of one", "answer": "012"}
    assert second == ({"prompt": 'say "hi"', "answer": ""}, f"{file}:4")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"own\.csv:1: the columns are \[\]"),
        ("a,a\n1,2\n", "give each a name of its own"),
        ("a,b\n1\n", r"own\.csv:2 has 1 cells for 2 columns"),
        ('a,b\n1,"2\n', r"own\.csv:\d is no line of CSV"),
        ("a,b\n", "has no rows"),
    ],
)
def test_csv_that_is_wrong_is_told_by_its_line(tmp_path, content, message):
    file = tmp_path / "own.csv"
    file.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_rows(file)
