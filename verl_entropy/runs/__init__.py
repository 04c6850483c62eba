# SPDX-License-Identifier: Apache-2.0
"""What a run leaves behind: run files, reports, judgements."""
