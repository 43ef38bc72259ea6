import dataclasses
import json
import math
import re
import typing
from pathlib import Path

import numpy as np
import pytest
from annotated_types import GroupedMetadata

from ogrpo.cli import options as command
from ogrpo.config.method import algorithm
from ogrpo.config.train import TrainConfig
from ogrpo.config.update import Kernels
from ogrpo.core.algorithms import ALGORITHMS, PROXIMAL
from ogrpo.kernels.log_probs import KEPT_BYTES, NAMES
from ogrpo.run.session import as_json
from ogrpo.setup.presets import PRESETS
from ogrpo.system.values import changed, from_json, to_json
from tests.loop.walk import annotated, with_options

SERVED = {"rollout.url": ("http://127.0.0.1:8000",)}
NAMED = {"processes.coordinator": "host:7777", "processes.count": 2, "processes.id": 1}


def parse(options, preset="default"):
    return command.parse(options, program="train", preset=preset)


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "none"])
def test_a_preset_says_what_it_takes(name):
    text = PRESETS[name].__doc__ or ""
    assert all(word in text for word in ("Command:", "Hardware", "ime", "core"))


def test_table_1():
    """arXiv:2505.22257, section 5.1: beta .1, centre 1, and three swaps where i is 1."""
    table = {n: PRESETS[n]() for n in ("v1-i1", "v1-i1-masked", "v10-i1", "v1-i10")}
    schedules = [config.schedule for config in table.values()]
    dials = [(s.sync_interval, s.updates_per_batch, s.stages) for s in schedules]
    assert dials == [(1, 1, 4), (1, 1, 4), (10, 1, 4), (1, 10, 1)]
    masked = {n for n, c in table.items() if c.override.mask_zero_variance}
    assert masked == {"v1-i1-masked"}
    for config in table.values():
        assert config.knobs.beta == 0.1
        assert PROXIMAL not in algorithm(config).reads  # centre 1


def test_the_papers_small_model():
    """arXiv:2505.22257, section 5.1: 28 prompts of 16, lr 5e-6, T .1, 50 samples a question."""
    config = PRESETS["qwen2.5-0.5b"]()
    assert (config.schedule.prompts, config.rollout.group_size) == (28, 16)
    assert config.schedule.stages == 4
    assert (config.optimizer.learning_rate, config.knobs.beta) == (5e-6, 0.1)
    assert config.rollout.temperature == config.evaluation.temperature == 0.1
    assert (config.evaluation.samples, config.rollout.max_tokens) == (50, 200)


def test_options_change_the_preset_they_start_from():
    config = parse(["--preset", "v1-i10", "--seed", "3", "--knobs.eps-high", "0.28"])
    changes = {"preset": "v1-i10", "seed": 3, "knobs.eps_high": 0.28}
    assert config == with_options(PRESETS["v1-i10"](), changes)


@pytest.fixture
def start(tmp_path):
    """Writes the config of a run, and returns it with the options that go on with the run."""

    def start(*options):
        config = parse([*options])
        (tmp_path / "config.json").write_text(json.dumps(as_json(config)))
        return config, ["--run-dir", str(tmp_path), "--resume"]

    return start


def test_a_resumed_run_keeps_its_config_and_takes_changes(start, tmp_path):
    first, go_on = start("--preset", "v1-i1", "--seed", "5", "--evaluation.split", "validation")
    same = dataclasses.replace(first, run_dir=tmp_path, resume=True)
    assert parse(go_on) == same
    longer = with_options(same, {"schedule.steps": 9})
    assert parse([*go_on, "--schedule.steps", "9"]) == longer
    back = parse([*go_on[:2], "--resume-from", "40"])
    assert back == dataclasses.replace(first, run_dir=tmp_path, resume_from=40)


@pytest.mark.parametrize("flag", ["gradient-variance", "no-gradient-variance"])
def test_a_flag_is_set_either_way_whatever_the_resumed_run_has(start, flag):
    first, go_on = start(f"--evaluation.{flag}")
    assert parse(go_on).evaluation == first.evaluation
    off = parse([*go_on, "--evaluation.no-gradient-variance"]).evaluation
    assert off == dataclasses.replace(first.evaluation, gradient_variance=False)


@pytest.mark.parametrize(
    ("first", "again", "message"),
    [
        ("--task gsm8k", "--task a.jsonl", r"--task gsm8k, which cannot change to a\.jsonl"),
        ("--preset v1-i1", "--preset v10-i1", "started with --preset v1-i1"),
    ],
)
def test_a_resumed_run_refuses_what_cannot_change(start, first, again, message):
    _, go_on = start(*first.split())
    with pytest.raises(ValueError, match=message):
        parse([*go_on, *again.split()])


REFUSED = [
    # options, what the error says
    ({"rollout.transport": "url"}, r"rollout\.transport is url.*give --rollout\.url"),
    ({"rollout.in_flight": "abort"}, r"in-flight is abort, .* give --rollout\.url and --rollout"),
    ({"rollout.timeout": 3.0}, r"timeout is 3\.0, which changes nothing here: give --rollout\.url"),
    (
        {**SERVED, "rollout.transport": "url", "rollout.listen": "::"},
        r"rollout\.listen is '::'.* give rollout\.advertise.* perhaps 127\.0\.0\.1",
    ),
    ({"replay.half_life": 2.0}, r"half-life is 2\.0.*nothing here: give --replay\.sampler fresh"),
    ({"trust_region.kind": "mask", "trust_region.rate": 0.5}, "kind penalty or clip"),
    ({"optimizer.microbatches": 3}, "microbatches is 3, but a batch of 16 groups cannot be cut"),
    ({"mesh.data": 3}, r"mesh\.data is 3, .* cannot be cut over mesh\.data \* mesh\.fsdp devices"),
    ({"optimizer.batching": "ragged"}, "batching is 'ragged': choose one of.*padded.*packed"),
    ({"optimizer.eps": 0.0}, r"optimizer\.eps is 0\.0: give a number above 0"),
    ({"optimizer.b2": 0.999, "model.dtype": "bfloat16"}, "second moments in bfloat16 would hardly"),
    ({"schedule.offline": True}, r"schedule\.warmup is 0: give the number of batches"),
    (
        {
            **SERVED,
            "certificate.delta": 0.05,
            "schedule.sync_offset": 1,
            "rollout.workers": 2,
            "rollout.in_flight": "abort",
        },
        r"certificate\.delta is 0\.05, whose draws may not be selected by length, .*in-flight abort does",
    ),
    *(
        ({"certificate.delta": 0.05, option: value}, r"certificate\.delta is .* draw from others")
        for option, value in (("rollout.top_p", 0.9), ("rollout.quantize", "int8"))
    ),
    ({"replay.groups": 15}, r"replay\.groups is 15.*batches of 16"),
    ({"model.random": "tiny", "model.path": Path("x")}, r"model\.random is tiny, .* are loaded"),
    ({"data.train": 10**30}, r"data\.train is 10+: give int below 2\^63"),
    ({"schedule.steps": "2"}, r"schedule\.steps is '2': give int"),
    ({"schedule.steps": 2.0}, r"schedule\.steps is 2\.0: give int"),
    ({"schedule.steps": np.int64(2)}, r"schedule\.steps is .*2.*: give int"),
    ({"run_dir": "runs/1"}, r"run-dir is 'runs/1': give Path"),
    ({"rewards": ["a.py:f"]}, r"rewards is \['a\.py:f'\]: give tuple"),
    ({**NAMED, "processes.id": 2}, "processes.id is 2"),
    ({**NAMED, "processes.coordinator": "7777"}, "coordinator is 7777, which .*: give HOST:PORT"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_a_wrong_option_is_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        with_options(TrainConfig(), options)


def test_the_command_line_refuses_what_a_config_does(capsys):
    for words, message in (
        (["--optimizer.weight-decay=inf"], "optimizer.weight-decay is inf"),
        (["--schedule.sync-interval", "0"], "schedule.sync-interval is 0: give at least 1"),
        (["--replay.half-life", "2"], "replay.half-life is 2.0, which changes nothing here"),
    ):
        with pytest.raises(SystemExit):
            parse(words)
        assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_numpys_float_is_a_float():
    assert with_options(TrainConfig(), {"optimizer.learning_rate": np.float64(1e-3)})


def test_every_bound_is_held_and_every_word_is_one_of_those():
    """Just beyond each annotated bound; what it names is what the command line has."""
    refused = [(path, value) for path, hint in annotated(TrainConfig()) for value in beyond(hint)]
    finite = [value for _, value in refused if isinstance(value, str) or math.isfinite(value)]
    assert len(finite) > 90
    infinite = {path for path, value in refused if value == math.inf}
    assert {"optimizer.learning_rate", "optimizer.eps", "knobs.beta", "reward.weights"} <= infinite
    for path, value in refused:
        option = re.escape(path.replace("_", "-"))
        each = (value,) if path == "reward.weights" else value
        with pytest.raises(ValueError, match=rf"{option} is {value!r}: (give|choose)"):
            with_options(TrainConfig(), {path: each})


def beyond(hint):
    """Yields values that an annotation does not take."""
    if "float" in str(hint):
        yield from (math.nan, math.inf, -math.inf)
    if typing.get_origin(hint) is typing.Literal:
        yield "none of these"
    for part in getattr(hint, "__metadata__", ()):
        for bound in part if isinstance(part, GroupedMetadata) else (part,):
            for sign, step in (("ge", -1), ("gt", 0), ("le", 1), ("lt", 0)):
                if hasattr(bound, sign) and getattr(bound, sign) is not None:
                    yield getattr(bound, sign) + step
    for inner in typing.get_args(hint) if type(None) in typing.get_args(hint) else ():
        yield from beyond(inner)


def test_the_help_shows_bounds(capsys):
    with pytest.raises(SystemExit):
        parse(["--help"])
    shown = capsys.readouterr().out
    for line in (
        "--schedule.steps INT>=1",
        "--schedule.i INT>=1, --schedule.updates-per-batch INT>=1",
        "--lora.rank {None}|INT>=1",
        "--optimizer.b1 FLOAT in [0, 1)",
        "--reward.flip FLOAT in [0, 0.5]",
    ):
        assert line in shown


def test_the_preset_of_smollm2_goes_to_gsm8k_where_its_files_are_named(tmp_path):
    words = parse(["--preset", "smollm2-135m"])
    assert (words.task, words.model.path) == ("word-problems", Path("smollm2-135m"))
    assert not words.warm_start.solutions
    seeded = parse(["--preset", "smollm2-135m", "--data.train", "50", "--data.seed", "3"])
    assert seeded.data.seed == 3
    file = tmp_path / "run.yaml"
    file.write_text("preset: smollm2-135m\ndata:\n  path: DIR\n")
    for options in (["--preset", "smollm2-135m", "--data.path", "DIR"], ["--config", str(file)]):
        files = parse(options)
        assert (files.task, files.data.path, files.warm_start.solutions) == ("gsm8k", "DIR", True)
    assert files.evaluation.prompts == 1319


@pytest.mark.parametrize("name", ["qwen2.5-0.5b", "qwen3-4b"])
@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        ([], "--model.path and --data.path"),
        (["--model.path", "folder"], "--data.path"),
        (["--data.path", "folder"], "--model.path"),
        (["--model.random", "tiny"], "--data.path"),
    ],
)
def test_a_preset_of_a_real_model_names_what_it_was_not_given(name, arguments, missing):
    with pytest.raises(ValueError, match=f"--preset {name} also needs {missing}:"):
        parse(["--preset", name, *arguments])


def test_given_weights_do_not_get_the_small_decoders_learning_rate(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("model:\n  path: DIR\n")
    for options in (["--model.path", "DIR"], ["--config", str(file)]):
        message = "model.path is DIR, .* name --preset none, or one of a"
        with pytest.raises(ValueError, match=message):
            parse(options)
        config = parse(["--preset", "none", *options])
        assert config.optimizer.learning_rate is None


def test_what_a_config_keeps_free_of_jax_is_what_jax_has():
    assert Kernels().kept_mib << 20 == KEPT_BYTES
    assert typing.get_args(typing.get_type_hints(Kernels)["log_probs"]) == NAMES


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seed": "1"}, r"run/config\.json: seed is '1': give int"),
        ({"seed": None}, "seed is None: give int"),
        ({"schedule": {"steps": 0}}, r"config\.json: schedule\.steps is 0: give at least 1"),
        ({"schedule": {"stepz": 4}}, r"no option schedule\.stepz\. Did you mean schedule\.steps\?"),
        ({"of_the_future": 4}, r"no option of_the_future\. Another version of ogrpo may have it"),
        ({"rewards": [1]}, r"rewards is \[1\]: give tuple"),
        ({"model": {"path": 7}}, r"model\.path is 7: give Path or null"),
        ({"schedule": {"evaluate_every": "4"}}, r"schedule\.evaluate-every is '4': give int"),
    ],
)
def test_a_wrong_field_is_named_with_its_file(values, message):
    with pytest.raises(ValueError, match=message):
        from_json(TrainConfig, values, "run/config.json")


def test_a_name_takes_the_place_of_an_algorithm_of_ones_own():
    config = TrainConfig(algorithm=ALGORITHMS["dapo"])  # a dataclass, and no table of options
    assert changed(config, {"algorithm": "grpo"}, "").algorithm == "grpo"


@pytest.mark.parametrize("name", PRESETS)
def test_what_was_written_is_read_as_it_was(name):
    config = dataclasses.replace(PRESETS[name](), preset=name, run_dir=Path("here"))
    assert from_json(TrainConfig, json.loads(json.dumps(to_json(config)))) == config
