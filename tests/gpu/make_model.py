# SPDX-License-Identifier: Apache-2.0
"""make_model.py MODEL OUT: the layers of Qwen2.5-1.5B with random weights, and MODEL's tokenizer and vocabulary.

For times: an update or a decoding step costs what it costs with trained weights. head_cost.py builds its models here too.
"""

import sys
from pathlib import Path

MODELS = {
    "Qwen2.5-1.5B": {
        "vocab_size": 151_936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
    },
    "SmolLM2-135M": {
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
}


def save(name: str, folder: Path, **settings: int) -> None:
    """A model of MODELS with random bf16 weights; ``settings`` of its configuration go before."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

    kind = Qwen2Config if name.startswith("Qwen") else LlamaConfig
    config = kind(tie_word_embeddings=True, **(MODELS[name] | settings))
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        built = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    built.save_pretrained(folder, max_shard_size="20GB")


def main(model: str, out: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokens = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    save("Qwen2.5-1.5B", Path(out), vocab_size=len(tokenizer), **tokens)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
