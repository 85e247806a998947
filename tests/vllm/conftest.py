# SPDX-License-Identifier: Apache-2.0
"""What all tests here share: they need vLLM, and run after `tools/vllm_env.sh`."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Silences what torch says of its own code."""
    config.addinivalue_line("filterwarnings", "ignore:`torch.jit.*is deprecated:DeprecationWarning")
