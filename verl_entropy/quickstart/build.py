# SPDX-License-Identifier: Apache-2.0
"""What the quickstart needs, made from a seed: a word-level tokenizer, a tiny Llama, and data sets of episode seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verl_entropy.agent.settings import AgentSettings
from verl_entropy.data.source import FIRST_HELD_OUT, SEEDS_PER_RUN, Task, rl_rows
from verl_entropy.data.write import write_parquet
from verl_entropy.envs.worlds.household import household_vocabulary

ENV = {"split": "train", "difficulty": "tiny", "list_places": False}
# Four of the six families: a tiny kitchen has no lamp, and a model of 0.2 M parameters does not learn pick-two in a minute.
TASK_TYPES = (
    "pick_and_place_simple",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
)
MAX_TURNS = 8
AGENT = {
    "name": "household",
    "kwargs": {"difficulty": ENV["difficulty"], "list_places": ENV["list_places"], "task_types": list(TASK_TYPES)},
    "max_turns": MAX_TURNS,
    "history_length": 3,
    "show_admissible": False,
    "prompt_template": "brief",
}
MAX_PROMPT, MAX_RESPONSE = 96, 20
HELD_OUT = 128
"""Episodes of each held-out split."""
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


def agent_settings() -> AgentSettings:
    """The agent loop's settings, ``data.env.*``, for warm start and training alike."""
    return AgentSettings.from_mappings(AGENT)


def word_level(words: Sequence[str], template: str = TEMPLATE, **special: Any):
    """A tokenizer with one token per word: ``words`` by id, among them <unk>; ``special``: ``eos_token`` and the like."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", **special)
    tokenizer.chat_template = template
    return tokenizer


def build_tokenizer():
    """Everything the environment can say is in the vocabulary."""
    words = [*SPECIAL, *sorted({*household_vocabulary(), *OTHER.split()} - set(SPECIAL))]
    return word_level(words, pad_token="<pad>", eos_token="<|im_end|>", bos_token="<|im_start|>")


def build_model(vocabulary: int, seed: int):
    """A Llama of 0.2 M parameters."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng(devices=[]):  # the CPU's alone: it warns and is slow where there are many GPUs
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


def write_data(folder: Path, seed: int, tasks: int) -> None:
    """train.parquet with ``tasks`` tasks, and seen.parquet and unseen.parquet with the held-out ones."""
    for split, first, count in (
        ("train", seed * SEEDS_PER_RUN, tasks),
        *((s, FIRST_HELD_OUT, HELD_OUT) for s in ("seen", "unseen")),
    ):
        found = [Task(first + i, {"split": split}) for i in range(count)]
        write_parquet(rl_rows(found, "household", split), folder / f"{split}.parquet")
