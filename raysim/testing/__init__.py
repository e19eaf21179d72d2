"""Tests for your own federated method; they need pytest and nothing of this repository.

`pip install 'raysim-fl[testing]'` installs pytest.

Save this next to `my_method.py` as `test_my_method.py`, and run `python -m pytest`:

    from raysim.testing import MethodContract

    class TestServerMomentum(MethodContract):
        method = "my_method:ServerMomentum"

They train four small networks, compare the bits of runs in one process, on two Ray actors and
resumed, and check the files of a run and the refusal of bad settings. `ComponentContract` is for
selections, stages of the channel and aggregations, `LoopContract` for training loops.
"""

from raysim.testing.contract import ComponentContract, LoopContract, MethodContract

__all__ = ["ComponentContract", "LoopContract", "MethodContract"]
