"""The code blocks of README, CONTRIBUTING and docs: Python runs, commands exist with their options.

Python runs in the order of the page, in one namespace; `prologue` has what a page takes as there. Each
command, in a block or a span of code, is read by its program. A block says by `<!-- needs: ... -->` on
the line above it what it cannot run without; NEEDS has all reasons that there may be. The commands of
all others, and Python that trains (`TRAINS`), run in tests/test_page_commands.py.
"""

import importlib.util
import re
import shlex
import shutil
import sys
from contextlib import redirect_stdout, suppress
from functools import cache
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NamedTuple
from urllib.parse import urlsplit

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from experiments.run import STUDIES
from ogrpo.cli.main import COMMANDS, main
from ogrpo.cli.options import EvalConfig, parse, parse_eval
from ogrpo.config.train import TrainConfig
from ogrpo.protocol import Completion, Group, Sampling
from ogrpo.rollout.extension import ogrpo_serve
from ogrpo.tasks import Example
from ogrpo_plan.config import plan_of
from tests.core.cases import arrays, batch_of
from tests.evaluation import engines
from tests.loop.walk import SUMS, annotated

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
NEEDS = {
    "a cluster": "several machines or a scheduler",
    "a GPU": "CUDA, or an Ascend NPU and its image",
    "a network": "weights, packages or an account",
    "an environment": "a fresh one, into which something is installed",
    "hours": "more time than a test has, from minutes on",
    "packages": "PyTorch, pandas or others that the tests' environment does without",
    "a server": "a vLLM server; those of tests/server run the same",
    "a diverged run": "tests/loop/test_diverged.py makes one, and runs the command",
}
SHELL = {
    *"python3 python3.11 pip pip-licenses pre-commit make export docker bash #SBATCH cd git".split()
}
"""Programs that are not ours."""


class Block(NamedTuple):
    page: str
    line: int
    kind: str
    needs: str
    text: str

    def __str__(self):
        return f"{self.page}:{self.line}"

    @property
    def commands(self):
        """The commands of a shell's block, each as its words."""
        lines = self.text.splitlines()
        typed = [x for x in lines if x.startswith("$ ") or self.kind == "sh"]
        return [*commands_of("\n".join(typed))] if self.kind in ("sh", "console") else []


def blocks_of(page):
    text = page.read_text()
    fence = re.compile(r"^(?:<!-- needs: ([^\n]*) -->\n)?```([^\n]*)\n(.*?)^```$", re.M | re.S)
    for match in fence.finditer(text):
        if match[2].startswith("{"):  # a directive of the site
            continue
        line = text.count("\n", 0, match.start()) + 1
        yield Block(page.name, line, match[2], match[1] or "", match[3])


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def commands_of(text):
    """The commands of a shell's text, each as its words, without what is before the program."""
    for line in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"(^|\s)#\s.*$", "", line)
        for part in re.split(r" && | \|\| | &$|; ", line.removeprefix("$ ")):
            words = shlex.split(part)
            while words and (re.fullmatch(r"[A-Z_]+=.*", words[0]) or words[0] in ("srun", "exec")):
                words.pop(0)
            if words and words[0] in ("sh", "bash") and "-c" in words:
                yield from commands_of(words[words.index("-c") + 1])
            elif words:
                yield [Path(words[0]).name if "/bin/" in words[0] else words[0], *words[1:]]


CONFIGS = {"train": TrainConfig(), "eval": EvalConfig(task="math-500"), "plan": plan_of("none")}
PATHS = {name: [path for path, _ in annotated(config)] for name, config in CONFIGS.items()}
OPTIONS = {name: {f"--{x.replace('_', '-')}" for x in paths} for name, paths in PATHS.items()}
"""Each config's options, as they are typed."""
EARLY = {
    *"--config --print-config --algorithms --help --from-logs --schedule.i --schedule.v".split()
}


@cache
def help_of(command):
    """The help of a command that is no config's."""
    with redirect_stdout(StringIO()) as text, suppress(SystemExit):
        main([command, "--help"])
    return text.getvalue()


def check_command(words, *, whole):
    """Fails where ours is called wrongly; `whole` has it read its values, too."""
    program, *rest = words
    rest = rest[: rest.index("--")] if "--" in rest else rest
    whole = whole and not any("$" in word for word in rest)
    typed = {word.partition("=")[0] for word in rest if re.match(r"--[a-z]", word)}
    if program == "python" and rest[:3] == ["-m", "experiments.run", "gsm8k"]:
        program, rest = "ogrpo", ["train", "--preset", "default", *rest[3:]]
    elif program == "python" and rest[:3] == ["-m", "experiments.run", "plan"]:
        program, rest = "ogrpo", ["plan", *rest[3:]]
    if program == "ogrpo-serve":
        program, rest = "ogrpo", ["serve", *rest]
    if program == "ogrpo":
        command, *rest = rest
        if command in OPTIONS:
            plain = {re.sub(r"(--|\.)no-", r"\1", word) for word in typed}
            assert plain <= OPTIONS[command] | EARLY, words
            if whole and command == "train" and "--resume" not in rest:
                parse(rest, program="ogrpo train", preset="none")
            elif whole and command == "eval":
                parse_eval(rest)
        else:
            assert command in {*COMMANDS, "--help"}, words
            assert all(option in help_of(command) for option in typed), words
            if whole and command == "serve":
                ogrpo_serve.parser().parse_args(rest)
    elif program == "python" and rest[:2] == ["-m", "experiments.run"]:
        assert rest[2] in STUDIES or rest[2] in ("STUDY", "NAME"), words
    elif program == "python" and rest[0] == "-m":
        assert importlib.util.find_spec(rest[1]) or rest[1] == "sphinx", words
    elif program == "python":
        assert rest[0] == "-c" or (ROOT / rest[0]).is_file() or rest[0] == "ogrpo_serve.py", words
    else:
        assert program in SHELL, words


def write_files(folder):
    """The files that pages speak of: options, problems and the README's reward."""
    (folder / "run.yaml").write_text("seed: 1\n")
    shutil.copy(SUMS, folder / "problems.jsonl")
    reward = next(b.text for b in BLOCKS if b.page == "README.md" and "def reward" in b.text)
    function = reward[reward.index("def reward") : reward.index("\n\n\n", 20)]
    (folder / "my_rewards.py").write_text(function + "\n")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the files that pages speak of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OGRPO_CACHE_DIR", str(tmp_path / "cache"))
    write_files(tmp_path)
    return tmp_path


def test_every_block_says_what_it_is():
    kinds = {"python", "sh", "console", "json", "yaml", "text"}
    assert [str(b) for b in BLOCKS if b.kind not in kinds] == []
    assert [str(b) for b in BLOCKS if b.needs and b.needs not in NEEDS] == []
    fences = sum(page.read_text().count("\n```") // 2 for page in PAGES)
    directives = sum(len(re.findall(r"^```\{", page.read_text(), re.M)) for page in PAGES)
    assert len(BLOCKS) == fences - directives  # none is indented, open, or behind a stray mark
    outside = {page.name: FENCED.sub("", page.read_text()) for page in PAGES}
    indented = re.compile(r"^    \S*(?:python3?|ogrpo|pip|make) .*$", re.M)
    assert [name for name, text in outside.items() if indented.search(text)] == []


FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
SPOKEN = re.compile(r"`((?:python -m [a-z]|ogrpo(?:-serve)? )[^`]*)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_exists_with_its_options(page, here):
    for block in blocks_of(page):
        for words in block.commands:
            check_command(words, whole=True)
        if block.kind == "yaml":
            assert [*yaml.safe_load_all(block.text)]
            for command in re.findall(r"exec (ogrpo (?:.*\n)*?.*\$JOB\w+)", block.text):
                typed = command.replace("$JOB_COMPLETION_INDEX", "0").replace("/shared/run", "run")
                check_command(shlex.split(typed), whole=True)
    for match in SPOKEN.finditer(FENCED.sub("", page.read_text())):
        spoken = " ".join(match[1].split())
        if "|" not in spoken and "..." not in spoken:
            for words in commands_of(spoken):
                check_command(words, whole=False)


def test_every_option_that_a_page_names_exists():
    options = {name for names in OPTIONS.values() for name in names}
    named = {
        (page.name, option.replace("--base.", "--").replace(".no-", "."))
        for page in PAGES
        for option in re.findall(r"--[a-z-]+\.[a-z0-9.-]*[a-z0-9]", page.read_text())
    }
    assert len(named) > 200
    assert {(page, name) for page, name in named if name not in options | EARLY} == set()


def prologue(page):
    """Defines the names that a page's blocks assume."""
    if page == "README.md":
        a = arrays()
        rewards = jnp.asarray(a.A[..., 0], float)
        return {"log_probs": jnp.asarray(a.lp, float), "batch": batch_of(a), "rewards": rewards}
    if page == "replay.md":
        ids, log_probs = np.array([3], np.int32), np.full(1, -1.0, np.float32)
        one = Completion(ids, log_probs, 0, 1.0, "stop")
        group = Group(np.array([1, 2], np.int32), (one,) * 4)
        there = {"group": group, "rewards": np.eye(1, 4, dtype=np.float32)[0]}
        return {**there, "version": 1, "step": 0, "folder": Path("experience")}
    if page == "evaluation.md":
        heldout = [Example("how many?", {"answer": "4"}, "a.jsonl:1")]
        sampling = Sampling(temperature=1.0, max_tokens=6, group_size=3)
        there = {"engine": engines.make_engine(), "sampling": sampling}
        there |= {"encode": engines.encode, "decode": engines.decode}
        there["task"] = SimpleNamespace(heldout=heldout)
        return {**there, "pool": SimpleNamespace(score=engines.holds)}
    return {}


OTHERS = [ROOT / "SECURITY.md", ROOT / "llms.txt"]
FILE = re.compile(r"`((?:src|tests|docs|experiments|benchmarks|kernels|proofs|\.ci)/[\w./-]+)`")


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: page.name)
def test_files_and_links_of_the_project_lead_somewhere_and_others_are_well_formed(page):
    """Others are asked for by `python -m sphinx -b linkcheck docs build/links`, which needs a network."""
    named = FILE.findall(page.read_text())
    assert [file for file in named if not (ROOT / file).exists() and "NAME" not in file] == []
    for text, link in re.findall(r"(?<!`)\[([^\]]*)\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            parts = urlsplit(link)
            assert (parts.scheme, "." in parts.netloc) == ("https", True), link
            if parts.netloc == "arxiv.org":
                assert re.fullmatch(r"/abs/\d{4}\.\d{5}", parts.path), link
                assert parts.path.removeprefix("/abs/") in text or not re.search(r"\d{4}\.\d", text)
            continue
        path, _, place = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists() or target.name == "paper_index.md", link  # made by the site
        if place:  # as GitHub and the site name it
            heads = re.findall(r"^#+ (.*)$", target.read_text(), re.M)
            places = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
            assert place in places, link


@pytest.mark.parametrize("name", ["ctpo", "opmd_min", "rec_ring_is", "topr_token"])
def test_a_method_of_known_knobs_stands_in_four_files(name):
    """Two of the source, the formula, and docs/names.md: as CONTRIBUTING.md says, and no other."""
    word = re.compile(rf"\b{name}\b")
    source = [path for path in (ROOT / "src").rglob("*.py") if word.search(path.read_text())]
    paths = {str(path.relative_to(ROOT)) for path in source}
    catalogue = "src/ogrpo/core/algorithms/catalogue.py"
    (family,) = paths - {catalogue}
    assert family.startswith("src/ogrpo/core/objectives/")
    assert catalogue in (ROOT / "CONTRIBUTING.md").read_text()
    assert word.search((ROOT / "tests/core/reference.py").read_text())


def test_llms_txt_names_every_command():
    named = re.search(r"`ogrpo ([a-z|]+)`", (ROOT / "llms.txt").read_text())
    assert named is not None
    assert {*named[1].split("|")} == {*COMMANDS}


TRAINS = "ogrpo.Trainer("
PYTHON = [b for b in BLOCKS if b.kind == "python" and TRAINS not in b.text]


@pytest.mark.parametrize("page", sorted({b.page for b in PYTHON}))
def test_python_blocks_run_in_the_order_of_their_page(page, here, monkeypatch):
    for block in BLOCKS:
        if block.page == page and block.kind == "json":
            (here / "problems.jsonl").write_text(block.text)
    names = {"__name__": "page", **prologue(page)}
    monkeypatch.setitem(sys.modules, "page", ModuleType("page"))  # for dataclasses
    with jax.numpy_rank_promotion("allow"):
        for block in PYTHON:
            if block.page == page:
                code = compile(block.text, str(block), "exec")
                if not block.needs:
                    exec(code, names)
    if page == "README.md":
        assert np.isfinite(names["loss"])
    if page == "replay.md":
        assert len(names["buffer"]) == 1
