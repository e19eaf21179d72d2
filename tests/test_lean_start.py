"""What a run imports: some modules take seconds to import that no run needs."""

from __future__ import annotations

import subprocess
import sys

RUN = """
import sys
import torch
import raysim

x, y = torch.randn(60, 4), torch.randint(0, 2, (60,))
task = raysim.Task(model=lambda: torch.nn.Linear(4, 2), clients=[(x, y)] * 2, test=(x, y))
settings = {
    "rounds": 2, "fraction": 1.0, "target_accuracy": None, "local.epochs": 1,
    "local.batch_size": 1, "engine.backend": "inline", "out": sys.argv[1],
}
raysim.run(raysim.load_config("mnist-fedavg", settings), task=task)
print(*(name for name in ("torch._dynamo", "sympy", "torchvision") if name in sys.modules))
"""


def test_a_run_imports_no_compiler(tmp_path):
    command = [sys.executable, "-c", RUN, str(tmp_path / "run")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
