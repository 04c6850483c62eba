# SPDX-License-Identifier: Apache-2.0
"""A socket of its own for the weights of every run on a host.

Mends: verl's trainer hands the weights to vLLM's workers over a socket in /tmp that is named after Ray's job id. Each run that starts
its own Ray has job 01000000, so two of them on one host share the name: at times an update waits for minutes, and at times a
server loads the weights of the other run and samples a step from them. The address of Ray's head tells the runs apart.
Versions: 0.9.0, 0.9.1.
Asked for by: a chosen method.
No longer needed when ``ServerAdapter.zmq_handle`` holds more of a run than ``get_job_id()``.
"""

from __future__ import annotations

import functools
import hashlib
import os
from types import ModuleType

JOB = "VERL_RAY_JOB_ID"
"""Where verl's server leaves the job id for vLLM's workers, which build the same name from it."""


def run_name(job_id: str, head: str) -> str:
    """A job id that no other Ray cluster of the host has; short, because a socket's path has at most 107 characters."""
    return f"{job_id}-{hashlib.sha256(head.encode()).hexdigest()[:8]}"


def _names() -> tuple[str, str]:
    """verl's name of this run, and ours."""
    import ray

    context = ray.get_runtime_context()
    job_id = context.get_job_id()
    return job_id, run_name(job_id, context.gcs_address)


def wrap_sender(module: ModuleType) -> None:
    """Rename the socket of ``ServerAdapter``, the trainer's side."""
    original = module.ServerAdapter.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        old, new = _names()
        self.zmq_handle = self.zmq_handle.replace(f"-{old}-", f"-{new}-", 1)

    module.ServerAdapter.__init__ = __init__


def wrap_server(module: ModuleType) -> None:
    """Tell the workers that ``vLLMHttpServer`` starts the same name."""
    original = module.vLLMHttpServer.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        os.environ[JOB] = _names()[1]

    module.vLLMHttpServer.__init__ = __init__
