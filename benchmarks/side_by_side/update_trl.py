"""One update of TRL: `GRPOTrainer.train` on a batch that is ready; run by `update.py`.

Only `_prepare_inputs`, which would sample and score completions, is replaced: loss, backward pass,
clipping, optimizer and the loop around them are TRL's and transformers' own.
"""

import math

import torch
import trl.trainer.utils
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from update_cases import ADAM, ALPHA, EPSILON, MAX_GRAD_NORM, TARGETS, draw_adapter
from worker import Clock, Job


def make_model(job: Job) -> Qwen2ForCausalLM:
    if weights := job.fields.get("weights"):
        return Qwen2ForCausalLM.from_pretrained(weights, dtype=torch.float32)
    shape = job.shape
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.prompt + shape.completion,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
    )
    return Qwen2ForCausalLM(config)


def share_adapters(model: torch.nn.Module) -> None:
    """Gives each A the value that it has in all systems."""
    for name, parameter in model.named_parameters():
        if ".lora_A." in name:
            parts = name.split(".")
            layer, target = int(parts[parts.index("layers") + 1]), parts[parts.index("lora_A") - 1]
            parameter.data = torch.from_numpy(draw_adapter(target, layer, tuple(parameter.shape)))


def make_config(job: Job) -> GRPOConfig:
    """TRL's defaults but for what the task fixes: float32, no KL, the mean over sequences."""
    sequences = job.shape.prompts * job.shape.group
    return GRPOConfig(
        output_dir=str(job.folder / "trl"),
        per_device_train_batch_size=sequences,
        num_generations=job.shape.group,
        max_completion_length=job.shape.completion,
        max_steps=1_000_000,
        beta=0.0,
        epsilon=EPSILON,
        loss_type="grpo",
        learning_rate=ADAM["learning_rate"],
        adam_beta1=ADAM["b1"],
        adam_beta2=ADAM["b2"],
        adam_epsilon=ADAM["eps"],
        weight_decay=0.0,
        max_grad_norm=MAX_GRAD_NORM,
        lr_scheduler_type="constant",
        gradient_checkpointing=job.settings.checkpointing,
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def make_inputs(job: Job) -> dict[str, torch.Tensor]:
    arrays, group = job.batch(), job.shape.group
    prompts = torch.from_numpy(arrays["prompt_ids"]).long().repeat_interleave(group, dim=0)
    tokens = torch.from_numpy(arrays["completion_ids"]).long().reshape(len(prompts), -1)
    old = torch.from_numpy(arrays["behavior_log_probs"]).reshape(tokens.shape)
    return {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": tokens,
        "completion_mask": torch.ones_like(tokens),
        "advantages": torch.from_numpy(arrays["advantages"]).reshape(-1),
        "old_per_token_logps": old,
        "num_items_in_batch": torch.tensor(float(tokens.numel())),
    }


class ReadyTrainer(GRPOTrainer):
    """GRPOTrainer whose batches need not be sampled."""

    ready: dict[str, torch.Tensor]
    checking: bool
    loss: float
    norm: float = math.nan

    def _prepare_inputs(self, generation_batch):  # noqa: ARG002
        return self.ready

    def training_step(self, model, *args, **kwargs):
        loss = super().training_step(model, *args, **kwargs)
        self.loss = loss.item()  # in the log it is rounded
        if self.checking:  # the trainer's own sum is in float32, which loses digits on a CPU
            grads = (p.grad for p in model.parameters() if p.grad is not None)
            squares = [grad.double().square().sum() for grad in grads]
            self.norm = torch.stack(squares).sum().sqrt().item()
        return loss


class Ticks(TrainerCallback):
    """Tells the clock of each update, and the trainer when to stop."""

    def __init__(self, trainer: ReadyTrainer, clock: Clock) -> None:
        self.trainer, self.clock = trainer, clock

    def on_log(self, args, state, control, logs, **kwargs):  # noqa: ARG002
        if "grad_norm" in logs:
            norm = self.trainer.norm if self.trainer.checking else logs["grad_norm"]
            control.should_training_stop = not self.clock.tick(self.trainer.loss, norm)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Encodes the prompts of a data set that is never looked at."""
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "a": 2}, unk_token="<pad>"))
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=words, **special)


def main(job: Job) -> None:
    torch.set_num_threads(job.fields["threads"])
    if job.settings.head == "completions":
        # TRL asks it here alone whether to leave the prompts' positions out.
        trl.trainer.utils._use_triton = lambda device: True  # noqa: ARG005
    how = {"lora_alpha": ALPHA, "target_modules": [*TARGETS], "task_type": "CAUSAL_LM"}
    adapters = LoraConfig(r=job.settings.lora, **how) if job.settings.lora else None
    trainer = ReadyTrainer(
        make_model(job),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=make_config(job),
        train_dataset=Dataset.from_dict({"prompt": ["a"] * job.shape.prompts}),
        processing_class=make_tokenizer(),
        peft_config=adapters,
    )
    share_adapters(trainer.model)
    trainer.ready, trainer.checking = make_inputs(job), "weights" in job.fields
    clock = Clock(job, "trl", "torch", "transformers", "accelerate", "numpy")
    trainer.add_callback(Ticks(trainer, clock))
    trainer.train()


if __name__ == "__main__":
    main(Job())
