"""Tiny random models of each supported family, made by transformers."""

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

_COMMON = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    # Head size 8 has wavelengths 6, 63, 628 and 6283: one kept, one blended, two stretched.
    "original_max_position_embeddings": 128,
}

_SCALED = {"head_dim": 8, "rope_parameters": _LLAMA3}
CONFIGS = {
    "qwen2": lambda: Qwen2Config(**_COMMON, tie_word_embeddings=True),
    "qwen2-untied": lambda: Qwen2Config(**_COMMON, tie_word_embeddings=False),
    "qwen3": lambda: Qwen3Config(**_COMMON, head_dim=8, tie_word_embeddings=True),
    "qwen3-untied": lambda: Qwen3Config(**_COMMON, head_dim=8, tie_word_embeddings=False),
    "llama": lambda: LlamaConfig(**_COMMON, tie_word_embeddings=False),
    "llama3-scaled": lambda: LlamaConfig(**_COMMON, **_SCALED, tie_word_embeddings=True),
    "llama-all-heads": lambda: LlamaConfig(**{**_COMMON, "num_key_value_heads": 4}),
}


def make_model(name, seed=0):
    """A model whose every tensor is random: transformers starts biases at 0 and norms at 1."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def torch_logits(model, token_ids, mask):
    ids, attended = (torch.as_tensor(x).long() for x in (token_ids, mask))
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=attended).logits.float()
