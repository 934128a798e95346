"""The front process stays small: what it imports holds no tensors."""

from __future__ import annotations

import os
import subprocess
import sys

from fixtures.fronts import ROOT


def test_the_front_process_imports_no_torch() -> None:
    program = (
        "import sys, lockstep.server, lockstep.cli; print([name for name in ('torch', 'transformers', 'triton') if name in sys.modules])"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "engine")}
    shown = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=50)
    assert shown.stdout.strip() == "[]"
