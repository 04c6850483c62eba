# SPDX-License-Identifier: Apache-2.0
"""What the quickstart needs, made from a seed: a word-level tokenizer, a tiny Llama, and data sets of episode seeds."""

from __future__ import annotations

from pathlib import Path

from verl_entropy.agent.prompts import PromptBuilder
from verl_entropy.envs.household import household_vocabulary

ENV = {"split": "train", "difficulty": "tiny", "list_places": False}
# Four of the six families: a tiny kitchen has no lamp, and a model of 0.2 M parameters does not learn pick-two in a minute.
TASK_TYPES = (
    "pick_and_place_simple",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
)
MAX_TURNS = 8
HISTORY = 3
MAX_PROMPT, MAX_RESPONSE = 96, 20
HELD_OUT = 128
"""Episodes of each held-out split."""
FIRST_HELD_OUT = 1_000_000
"""Seeds below are for training, the warm start's are far above: no episode is shared."""

SPECIAL = ("<pad>", "<unk>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<action>", "</action>")
# The brief prompt template's own words, the expert's sub-goals, roles and punctuation.
OTHER = (
    "goal last now can -> : . , user assistant system step task none ... "
    "find drop take use clean heat cool move open look household"
)
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|> ' + m['role'] + ' ' + m['content'] + ' <|im_end|> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|> assistant ' }}{% endif %}"
)


def prompt_builder() -> PromptBuilder:
    """The prompts of warm start and training; the same settings go to the agent loop as ``data.env.*``."""
    return PromptBuilder(history_length=HISTORY, show_admissible=False, template="brief", action_format="text")


def build_tokenizer():
    """One token per word; everything the environment can say is in the vocabulary."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [*SPECIAL, *sorted({*household_vocabulary(), *OTHER.split()} - set(SPECIAL))]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", pad_token="<pad>", eos_token="<|im_end|>", bos_token="<|im_start|>"
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def build_model(vocabulary: int, seed: int):
    """A Llama of 0.2 M parameters."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=vocabulary,
                hidden_size=96,
                intermediate_size=192,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=4,
                max_position_embeddings=512,
                tie_word_embeddings=False,
                pad_token_id=0,
                bos_token_id=2,
                eos_token_id=3,
            )
        )


def row(index: int, seed: int, split: str) -> dict:
    """A row of verl's data set: one task, chosen by its seed."""
    return {
        "data_source": f"household/{split}",
        "prompt": [{"role": "user", "content": "household"}],
        "ability": "agent",
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": index, "seed": seed, "options": {"split": split}},
        "agent_name": "stepwise_env",
    }


def write_data(folder: Path, seed: int, tasks: int) -> None:
    """train.parquet with ``tasks`` tasks, and seen.parquet and unseen.parquet with the held-out ones."""
    import pandas as pd

    first = seed * 100_000
    pd.DataFrame([row(i, first + i, "train") for i in range(tasks)]).to_parquet(folder / "train.parquet")
    for split in ("seen", "unseen"):
        rows = [row(i, FIRST_HELD_OUT + i, split) for i in range(HELD_OUT)]
        pd.DataFrame(rows).to_parquet(folder / f"{split}.parquet")
