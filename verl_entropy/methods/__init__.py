# SPDX-License-Identifier: Apache-2.0
"""Every method's maths: estimators, transforms, losses, regularizers, heads, controllers. Imports ``batch`` only."""
