# SPDX-License-Identifier: Apache-2.0
"""The same methods on verl-agent (a fork of verl 0.3), without an edit of its source.

    python -m verl_entropy.verl_agent <the overrides of verl.trainer.main_ppo>

Everything that touches verl-agent is in this package; no file here is imported by the route of verl 0.9.

__main__.py      the launcher: versions, fingerprints, configuration, banner, then verl-agent's own main
fingerprints.py  the functions that are subclassed or called around, as they must be
settings.py      plan, checks and what is written into the configuration
runner.py        TaskRunner that puts our trainer and worker in place
trainer.py       RayPPOTrainer: row tags, advantages, metrics, state
rows.py          rows of a batch to turns; copies recognised
advantages.py    base, transforms and columns for the workers
worker.py        ActorRolloutRefWorker: entropy to the driver, head, checkpoint of the head
actor.py         DataParallelPPOActor: order of entropies, losses, regulariser, head
micro.py         a padded micro-batch as the shared loss code wants it
head.py          the SEAL head outside FSDP, with its own optimiser
ranks.py         reductions over the ranks
order.py         self-check of the order of entropies
"""
