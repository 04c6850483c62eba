# SPDX-License-Identifier: Apache-2.0
"""What verl's trainers share: the checked configuration, the registries, and the training workers' engine and loss."""
