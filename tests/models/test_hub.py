"""A push to a hub that is played here: what it gets, and what a failure leaves and says."""

import base64
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from ogrpo.cli.main import main
from ogrpo.models import hub
from ogrpo.models.known import licence_of
from ogrpo.report.model_card import CardData, write_card
from tests.rollout.vllm.stub import running

NAME = "someone/sums"


class Hub(BaseHTTPRequestHandler):
    """The hub's endpoints of a push of small files, which all go into the commit."""

    def do_GET(self):
        self.answer({"sha": "0" * 40, "siblings": [], "id": NAME})

    do_HEAD = do_GET

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        seen = self.server.seen
        seen.append((self.path, self.headers["Authorization"], body))
        if self.path == "/api/repos/create":
            self.answer({"url": f"{self.server.url}/{NAME}", "name": NAME, "id": NAME})
        elif self.path == "/api/validate-yaml":  # the front matter of the card
            self.answer({"errors": [], "warnings": []})
        elif self.path.startswith(f"/api/models/{NAME}/preupload"):
            files = json.loads(body)["files"]
            regular = {"uploadMode": "regular", "shouldIgnore": False}
            modes = [{"path": file["path"], **regular} for file in files]
            self.answer({"files": modes})
        elif self.path.startswith(f"/api/models/{NAME}/commit") and not self.server.refuses:
            commit = {"commitUrl": f"{self.server.url}/{NAME}/commit/1", "commitOid": "1" * 40}
            self.answer({**commit, "success": True, "hookOutput": ""})
        else:
            self.answer({"error": "you may not write here"}, status=403)

    def answer(self, value, status=200):
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with running(ThreadingHTTPServer(("127.0.0.1", 0), Hub)) as server:
        server.url = f"http://127.0.0.1:{server.server_port}"
        server.seen, server.refuses = [], False
        yield server


DATA = CardData(
    name="sums",
    method="grpo, beta 0",
    source="arXiv:2402.03300",
    data="sums.jsonl",
    command="ogrpo train --task sums.jsonl",
    base="smollm2-135m",
    licence="Apache-2.0",
    provenance=[("jax", "0.10.2")],
)
RECORDS = [
    {"step": n, "completions": 8 * n, "pass@1/sampled": n / 4, "heldout/reward/sampled": n / 4}
    for n in (0, 2)
]


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "model"
    made.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "notes.txt"):
        (made / name).write_text(name)
    write_card(made, DATA, RECORDS)
    return made


def test_a_push_makes_the_repository_and_commits_model_and_card(server, folder):
    address = hub.to_hub(folder, NAME, endpoint=server.url)
    assert address.endswith(NAME)
    assert {token for _, token, _ in server.seen} == {"Bearer hf_secret"}
    (commit,) = [body for path, _, body in server.seen if "/commit/" in path]
    lines = [json.loads(line) for line in commit.splitlines()]
    files = {
        line["value"]["path"]: base64.b64decode(line["value"]["content"])
        for line in lines
        if line["key"] == "file"
    }
    names = {"config.json", "model.safetensors", "tokenizer.json", "README.md"}
    assert files == {name: (folder / name).read_bytes() for name in names}


def test_a_refusal_and_a_hub_that_is_not_there_leave_the_folder_and_the_command(server, folder):
    server.refuses = True
    for endpoint in (server.url, "http://127.0.0.1:9"):
        with pytest.raises(OSError, match="was not pushed to someone/sums") as caught:
            hub.to_hub(folder, NAME, endpoint=endpoint)
        assert f"ogrpo model {folder} --push-to-hub {NAME}" in str(caught.value)
        assert "hf_secret" not in str(caught.value)
        assert len([*folder.iterdir()]) == 5


def test_a_run_that_could_not_push_is_refused_before_it_begins(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(hub, "get_token", lambda: None)
    words = ["train", "--run-dir", str(tmp_path / "run"), "--push-to-hub"]
    assert main([*words, NAME]) == 2
    assert "set HF_TOKEN" in capsys.readouterr().err
    assert main([*words, "a/b/c"]) == 2
    assert "give OWNER/NAME" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_card_has_figures_method_data_command_and_licence(folder):
    text = (folder / "README.md").read_text()
    head = yaml.safe_load(text.split("---\n")[1])
    assert (head["license"], head["library_name"]) == ("apache-2.0", "transformers")
    for part in ("0.500", DATA.method, DATA.source, DATA.data, DATA.command, "`0.10.2`"):
        assert part in text
    assert licence_of(folder) == ("model", "apache-2.0")  # the next run begins here
    (folder / "README.md").write_text("---\nlicense: mit\ndate: 2026-02-30\n---\n")
    assert licence_of(folder) == ("model", None)
    (folder / "README.md").write_text('---\nlicense: "mit"\n---\n')
    (folder / "source.json").write_text("[]")  # somebody else's
    assert licence_of(folder) == ("model", "mit")
