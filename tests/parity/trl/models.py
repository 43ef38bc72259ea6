"""Stand-ins for the arguments that TRL's trainer needs."""

import tempfile

QUIET = {"output_dir": tempfile.gettempdir(), "report_to": "none", "use_cpu": True, "bf16": False}
"""Arguments of `GRPOConfig` that say nothing of the method."""


def tiny():
    """A model and a tokenizer of twelve words, without which the trainer is not built."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    words = {word: i for i, word in enumerate(("<pad>", "<eos>", *map(chr, range(97, 107))))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    sizes = {"vocab_size": 12, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    options = {"tokenizer_object": tokenizer, "pad_token": "<pad>", "eos_token": "<eos>"}
    model = Qwen2ForCausalLM(Qwen2Config(**sizes, **heads))
    return {"model": model, "processing_class": PreTrainedTokenizerFast(**options)}
