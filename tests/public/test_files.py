"""Files of JSONTestSuite, apache/parquet-testing and safetensors through our readers."""

import base64
import json
import shutil
import tarfile
from pathlib import Path

import jax.numpy as jnp
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load

from ogrpo.data.replay import segments
from ogrpo.data.replay.columns import Layout
from ogrpo.policy import load_pretrained
from ogrpo.system.files import parse_json, read_json
from ogrpo.tasks.rows import Row, parse_line, read_rows

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "policy" / "golden" / "qwen2"

# Of what implementations may decide: small numbers and whole ones are taken. Numbers beyond every
# float, halves of surrogate pairs, other encodings than UTF-8 and 500 levels are refused.
TAKEN = [
    "i_number_double_huge_neg_exp",
    "i_number_real_underflow",
    "i_number_too_big_neg_int",
    "i_number_too_big_pos_int",
    "i_number_very_big_negative_int",
]
REFUSED = ["y_object_duplicated_key"]  # which of the two values is meant, nobody can know


def unpacked(archive, folder):
    with tarfile.open(HERE / archive) as tar:
        tar.extractall(folder, filter="data")
    return sorted(file for file in folder.iterdir() if file.suffix != ".md")


def refusal(read, *arguments):
    """Returns the value and None, or None and the message of the refusal."""
    try:
        return read(*arguments), None
    except ValueError as error:
        return None, str(error)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("test_parsing")
    return unpacked("jsontestsuite/test_parsing.tar.xz", folder)


def test_json_is_taken_or_refused_by_its_files_name(texts):
    refused = {file.stem: why for file in texts if (why := refusal(read_json, file)[1])}
    assert all(why.startswith(f"{texts[0].parent}/{name}.json") for name, why in refused.items())
    of = {kind: [f.stem for f in texts if f.name.startswith(f"{kind}_")] for kind in "yni"}
    assert {kind: len(names) for kind, names in of.items()} == {"y": 95, "n": 188, "i": 35}
    assert [name for name in of["y"] if name in refused] == REFUSED
    assert [name for name in of["n"] if name not in refused] == []
    assert [name for name in of["i"] if name not in refused] == TAKEN


def test_a_line_of_jsonl_is_taken_if_it_is_an_object_of_that_json(texts):
    """But for a byte order mark, which opens many files of lines; and a line may not be empty."""
    for file in texts:
        content = file.read_bytes()
        expected, _ = refusal(lambda c=content: parse_json(c.decode("utf-8-sig"), "it"))
        row, why = refusal(parse_line, content, "rows.jsonl:1")
        if isinstance(expected, dict):
            assert row == Row(expected, "rows.jsonl:1")
        else:
            assert (row, why.startswith("rows.jsonl:1")) == (None, True)


def test_damaged_parquet_is_refused_by_its_name_or_read_as_arrow_reads_it(tmp_path):
    files = unpacked("parquet_testing/bad_data.tar.xz", tmp_path)
    assert len(files) == 8
    layout, read = Layout(group_size=2, vocab_size=32), []
    for file in files:
        rows, why = refusal(read_rows, file)
        if rows is None:
            assert why.startswith(f"{file} is not a Parquet file, or a damaged one: ")
        else:
            read.append((file.name, len(rows), {row.columns["min_fl"] for row in rows}))
        with pytest.raises(ValueError, match=r"cannot be read|this version reads") as caught:
            segments.read(segments.Segment(0, 1, file), layout)
        assert str(caught.value).startswith(str(file))
    # Its dictionary's indices have no bits, which is one value: a file that is odd, and not wrong.
    assert read == [("ARROW-GH-43605.parquet", 21186, {0})]


HEADERS = [*map(json.loads, (HERE / "safetensors" / "cases.jsonl").read_text().splitlines())]


@pytest.mark.parametrize("case", HEADERS, ids=lambda case: case["id"])
def test_a_header_of_safetensors_own_tests_ends_in_an_error_that_names_the_file(tmp_path, case):
    """Those that it takes too hold no model."""
    model = Path(shutil.copytree(GOLDEN, tmp_path / "model")) / "model.safetensors"
    content = base64.b64decode(case["file"])
    model.write_bytes(content)
    with pytest.raises(ValueError, match=r".") as caught:
        load_pretrained(model.parent, jnp.float32)
    if case["error"] is None:
        assert f"{model.parent}: the checkpoint lacks" in str(caught.value)
    else:
        assert str(caught.value).startswith(f"{model} is not a readable safetensors file: ")
        with pytest.raises(SafetensorError):
            load(content)
