# SPDX-License-Identifier: Apache-2.0
"""The bundled repositories in the local runner."""

from conformance import Spec

SPEC = Spec(
    name="swe",
    wrong=(({"split": "mars"}, "split"), ({"runner": "moon"}, "runner"), ({"repositories": "/no/folder"}, "repositories")),
    episodes="18 / 3 / 3 bugs in 8 repositories",
)
