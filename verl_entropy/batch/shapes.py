# SPDX-License-Identifier: Apache-2.0
"""The one legend of shape suffixes used in this package.

    _P  prompt group (one task, several rollouts)      _T  token of the response axis
    _G  rollout inside a group                         _V  vocabulary
    _J  trajectory (one episode; P x G of them)        _D  hidden size
    _K  turn (one response of the policy)              _R  row of the training batch

``advantages_RT`` is a tensor with rows and tokens; ``entropy_K`` holds one number per turn.
A step-wise batch has one row per turn (R = K plus padding); verl's tool loop has one row per trajectory (R = J).
Entropies and log-probabilities are in nats.
"""
