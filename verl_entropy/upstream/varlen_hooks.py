# SPDX-License-Identifier: Apache-2.0
"""``attn_implementation=varlen`` under verl: registered in every process that loads a model, and kept out of saved configurations.

Mends: verl writes the name of the implementation into the model's configuration, which every checkpoint then holds; and it loads value
models with flash_attention_2 whatever the configuration says.
Versions: 0.9.0, 0.9.1.
Asked for by: ``attn_implementation=varlen``.
No longer needed when ``varlen`` is not, or verl leaves ``attn_implementation`` out of saved configurations and reads it for value models.
"""

from __future__ import annotations

import functools
from types import ModuleType


def register(transformers: ModuleType) -> None:
    """Register with transformers; never over somebody's name."""
    from verl_entropy.log import say
    from verl_entropy.upstream import varlen as attention

    taken = transformers.ALL_ATTENTION_FUNCTIONS.get(attention.NAME)
    if taken is not None and taken is not attention.varlen_attention:
        say(f"attn_implementation={attention.NAME} is taken by {taken.__module__}.{taken.__qualname__}, which stays")
        return
    attention.register()


def wrap_model(model: ModuleType) -> None:
    """Wrap ``verl.utils.model``: what it sets in configurations, and its loader of value models."""
    model.update_model_config = _without_name(model.update_model_config)
    model.load_valuehead_model = _in_varlen(model.load_valuehead_model)


def _without_name(inner):
    @functools.wraps(inner)
    def update_model_config(module_config, override_config_kwargs):
        """verl also sets the key as an attribute, which config.json of a checkpoint would keep, and only we can load."""
        from verl_entropy.upstream import varlen as attention

        kept = dict(override_config_kwargs)
        if kept.get("attn_implementation") == attention.NAME:
            attention.check_torch()
            del kept["attn_implementation"]
        return inner(module_config, kept)

    return update_model_config


def _in_varlen(inner):
    @functools.wraps(inner)
    def load_valuehead_model(local_path, torch_dtype, model_config, trust_remote_code):
        """verl asks for flash_attention_2 here, whatever the configuration says."""
        from transformers import AutoModelForTokenClassification

        from verl_entropy.upstream import varlen as attention

        if model_config._attn_implementation != attention.NAME:
            return inner(local_path, torch_dtype, model_config, trust_remote_code)
        return AutoModelForTokenClassification.from_pretrained(
            local_path, dtype=torch_dtype, config=model_config, trust_remote_code=trust_remote_code
        )

    return load_valuehead_model


def watch_ulysses(ulysses: ModuleType) -> None:
    """Let the attention see how many ranks share a sequence."""
    from verl_entropy.upstream import varlen as attention

    attention.shards = ulysses.get_ulysses_sequence_parallel_world_size
