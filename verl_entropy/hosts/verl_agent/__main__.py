# SPDX-License-Identifier: Apache-2.0
"""Launcher: ``python -m verl_entropy.verl_agent`` in the place of ``python -m verl.trainer.main_ppo`` of verl-agent.

    --check                   compose and check the configuration, print the banner and stop: no Ray, no GPU
    --allow-changed=NAME,...  accept these functions although they differ from the known verl-agent

Everything else goes to Hydra as it is: the overrides of verl-agent, and ``+entropy=<preset>`` and the keys of verl-entropy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from verl_entropy.config import compose, spelling
from verl_entropy.config.settings import ConfigError
from verl_entropy.hosts.install import patched
from verl_entropy.hosts.verl_agent import fingerprints, settings
from verl_entropy.log import say


def split_arguments(argv: list[str]) -> tuple[bool, list[str], list[str]]:
    """(--check given, functions allowed to differ, the rest)."""
    check, allowed, rest = False, [], []
    for argument in argv:
        if argument == "--check":
            check = True
        elif argument.startswith("--allow-changed="):
            allowed += [name for name in argument.partition("=")[2].split(",") if name]
        elif argument.startswith("--allow-changed"):
            raise ConfigError(f"{argument}: names are missing. Write --allow-changed=fit,update_policy.")
        else:
            rest.append(argument)
    return check, allowed, rest


def with_config_path(rest: list[str], folder: Path) -> list[str]:
    """Hydra's arguments; verl-agent's configuration folder is no package, so an imported main has to be told where it is."""
    given = any(a.split("=")[0] in ("--config-path", "-cp") for a in rest)
    return rest if given else [f"--config-path={folder}", *rest]


def run_with(main_ppo, check: bool, overrides: list[str]) -> Callable:
    """What verl-agent's ``main`` calls with the composed configuration, in place of its ``run_ppo``."""
    original = main_ppo.run_ppo

    def run_ppo(config) -> None:
        try:
            spelling.check_spelling(config)
            chosen = settings.prepare(config)
        except ConfigError as error:
            raise SystemExit(f"[verl-entropy] configuration error: {error}") from None
        from verl_entropy.hosts.verl_agent import order

        dynamic = bool(config.actor_rollout_ref.rollout.log_prob_use_dynamic_bsz)
        result = order.lines(dynamic) if chosen is not None else []
        series = patched.describe()
        for line in [*settings.banner(chosen, config, overrides, result), *([series] if series else [])]:
            say(line)
        if check:
            say("configuration checked; nothing was started")
            return
        if chosen is not None:
            import ray

            from verl_entropy.hosts.verl_agent.runner import EntropyTaskRunner

            main_ppo.TaskRunner = ray.remote(num_cpus=1)(EntropyTaskRunner)
        original(config)

    return run_ppo


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    if any(a in ("-h", "--help") for a in argv):
        print(__doc__)
    try:
        check, allowed, rest = split_arguments(argv)
        for word in rest:
            compose.check_group(word)
        folder = fingerprints.check(allowed)
    except (ConfigError, fingerprints.NotVerlAgent) as error:
        raise SystemExit(f"[verl-entropy] {error}") from None
    from verl_entropy.config import presets
    from verl_entropy.hosts.install import activate

    activate.LAUNCHED = True

    presets.ensure_search_path()
    from verl.trainer import main_ppo

    main_ppo.run_ppo = run_with(main_ppo, check, rest)
    sys.argv = [sys.argv[0], *with_config_path(rest, folder / "verl/trainer/config")]
    main_ppo.main()


if __name__ == "__main__":
    main()
