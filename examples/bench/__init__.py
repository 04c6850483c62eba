# SPDX-License-Identifier: Apache-2.0
"""The bench: methods x worlds x regimes x seeds under one trainer, and the page of what they show (``bash examples/bench.sh``).

It lives beside the examples, not in the package: it measures this repository and writes into it, and an installed package has neither.
"""
