"""TRL's GRPO on a small random model, for the crash harness: is a resumed run the undisturbed one?

    python -m benchmarks.reliability --runs 3 --metrics '{run}/metrics.jsonl' \
        --command 'python -m benchmarks.chaos.trl_trainer {run}' \
        --resume 'python -m benchmarks.chaos.trl_trainer {run} --resume'

Needs `pip install 'ogrpo[parity]'`. A batch of completions serves `--steps-per-generation` updates,
and a checkpoint is written after each, as is a record, by the trainer's own callbacks.
"""

import argparse
import json
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, GRPOTrainer

WORDS = ["<pad>", "<eos>", *map(str, range(30))]
TIMES = ("time", "runtime", "per_second")
"""Parts of the names of figures that are left out of a record."""


def even(completions: list[str], **_: object) -> list[float]:
    """Returns the share of even numbers in each completion."""
    numbers = [[int(word) % 2 == 0 for word in text.split()] for text in completions]
    return [sum(one) / max(len(one), 1) for one in numbers]


class Records(TrainerCallback):
    """Writes what TRL logs as a line of JSON a step."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_log(self, args, state, control, logs=None, **kwargs):  # noqa: ARG002
        """Appends a line; called by the trainer."""
        kept = {k: v for k, v in (logs or {}).items() if not any(part in k for part in TIMES)}
        if "loss" in kept:
            with self.path.open("a") as file:
                file.write(json.dumps({"step": state.global_step, **kept}) + "\n")


def main() -> None:
    """Trains in a folder, or goes on there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--steps-per-generation", type=int, default=4)
    typed = parser.parse_args()
    typed.run.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    vocabulary = Tokenizer(WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<pad>"))
    vocabulary.pre_tokenizer = WhitespaceSplit()
    ends = {"pad_token": "<pad>", "eos_token": "<eos>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=vocabulary, **ends)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(WORDS), **sizes, **heads))
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=even,
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": [f"{n} {n + 1}" for n in range(28)]}),
        callbacks=[Records(typed.run / "metrics.jsonl")],
        args=GRPOConfig(
            output_dir=str(typed.run / "checkpoints"),
            max_steps=typed.steps,
            per_device_train_batch_size=8,
            num_generations=4,
            steps_per_generation=typed.steps_per_generation,
            max_completion_length=8,
            learning_rate=1e-2,
            logging_steps=1,
            save_steps=1,
            use_cpu=True,
            bf16=False,
            report_to="none",
            disable_tqdm=True,
        ),
    )
    last = get_last_checkpoint(str(typed.run / "checkpoints")) if typed.resume else None
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main()
