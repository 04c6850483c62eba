# SPDX-License-Identifier: Apache-2.0
"""One suite for every environment: each ``specs/<name>.py`` names one, and one whose package is missing is skipped."""

import pytest
from conformance import CHECKS, leftovers, script, simulators, specs

SPECS = {spec.name: spec for spec in specs()}


@pytest.fixture(scope="module", params=sorted(SPECS))
def played(request):
    """A spec and an environment of it that goes from check to check."""
    spec = SPECS[request.param]
    reason = spec.missing()
    if reason:
        pytest.skip(f"{spec.name}: {reason}")
    before = {process.pid for process in simulators()}
    environment = spec.make()
    for row in spec.first(max(spec.distinct, spec.expert_rows)):
        script(spec, environment, row)  # whatever is made once (gold paths, games) is made here, with what it opens for that
    yield spec, environment
    environment.close()
    assert leftovers(before) == []


@pytest.mark.parametrize("check", CHECKS)
def test_conformance(played, check):
    spec, environment = played
    before = {process.pid for process in simulators()}
    CHECKS[check](spec, environment)
    assert leftovers(before) == [], "a thread or process of an environment is left"
