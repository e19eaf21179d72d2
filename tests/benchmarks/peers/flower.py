"""Flower: its simulation engine on Ray, FedAvg by messages, one ClientApp actor a core.

The client does what Flower's PyTorch tutorial does, with the bare loop's local steps in place of a
DataLoader. Model and data are resident in the actors, which its documentation leaves to the user.
Frozen parameters are not sent, as users of peft do.
FedProx is FedAvg whose clients add the term, as its strategy `FedProx` has them do.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from tests.benchmarks.peers.turns import EndedError, Turns
from tests.benchmarks.peers.work import ROUNDS, Case, open_data, train, travelling

client_app = ClientApp()


@lru_cache(maxsize=1)
def resident(case: str, folder: str) -> tuple[Any, ...]:
    """Return an actor's case, data and model, made at its first client."""
    torch.set_num_threads(1)
    parsed = Case.from_json(case)
    return parsed, *open_data(Path(folder)), parsed.build()


@client_app.train()
def train_client(message: Message, context: Context) -> Message:
    config = message.content["config"]
    case, x, y, model = resident(config["case"], config["folder"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)
    client = int(context.node_config["partition-id"])
    train(model, x[client], y[client], case)
    content = RecordDict(
        {
            "arrays": ArrayRecord(travelling(model)),
            "metrics": MetricRecord({"num-examples": len(y[client])}),
        }
    )
    return Message(content=content, reply_to=message)


class TakingTurns(FedAvg):
    """FedAvg that waits between rounds, and stops when a client failed."""

    def __init__(self, case: Case, turns: Turns) -> None:
        super().__init__(
            fraction_train=case.cohort / case.clients,
            fraction_evaluate=0.0,
            min_train_nodes=case.cohort,
            min_available_nodes=case.clients,
        )
        self.cohort, self.turns = case.cohort, turns

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if not self.turns.wait():
            raise EndedError
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        if failed or len(replies) != self.cohort:
            raise RuntimeError(f"{len(replies)} of {self.cohort} clients replied: {failed[:1]}")
        return super().aggregate_train(server_round, replies)


def run(case: Case, folder: Path, turns: Turns, actors: int | None = None) -> None:
    """Train rounds on so many actors; None: one a core."""
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        TakingTurns(case, turns).start(
            grid=grid,
            initial_arrays=ArrayRecord(travelling(case.build())),
            num_rounds=ROUNDS,
            train_config=ConfigRecord({"case": case.to_json(), "folder": str(folder)}),
        )

    try:
        run_simulation(
            server_app=server_app,
            client_app=client_app,
            num_supernodes=case.clients,
            backend_config={
                "init_args": {"address": "local", "num_cpus": actors or os.cpu_count()},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
    except EndedError:
        return
