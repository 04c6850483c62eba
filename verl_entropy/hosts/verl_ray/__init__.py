# SPDX-License-Identifier: Apache-2.0
"""verl's RayPPOTrainer: the trainer of verl 0.7.1 and 0.8.0, and of 0.9 with ``trainer.use_v1=False``."""
