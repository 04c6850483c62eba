# SPDX-License-Identifier: Apache-2.0
"""A CPU backend for verl's V1 trainer: for development, continuous integration and the first run, not for
training a model that you want to keep.

It is chosen by the environment variable ``VERL_PLATFORM=cpu`` alone and never detected by itself: without
that variable nothing in this package is imported. It goes through verl's own registries:

    PlatformRegistry                   a platform called ``cpu``
    EngineRegistry                     FSDP and FSDP2 engines for device ``cpu``: gloo, any world size
    rollout and replica registry       ``actor_rollout_ref.rollout.name=hf``: a transformers server

Two pieces save processor time only: requests (``client``) and rows (``puts``) that come within milliseconds of each other travel
together, for a step of a tiny model is mostly calls between processes.

The process group initialisers have no registry and are wrapped: torch refuses their backend string on a CPU (``process_group``).

``launch.cpu_env()`` and ``launch.cpu_overrides()`` give the environment and the command line of a run.
"""
