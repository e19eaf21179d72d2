"""Memory and time of clients whose adapters share a base of 1 or 7 billion parameters, on paper.

Usage: python -m tests.benchmarks.large_bases [--rows 4] [--tokens 512] [--rank 8] [--memory 80]

Nothing is run on a card. Networks of these sizes are built on torch's meta device, which has shapes
and no values. Bases are in bfloat16; adapters and two states of Adam are float32.

- estimated: what `engine.vectorize=auto` takes a stack for (`training.stacked.stack_size`); auto
  keeps it below 60% of the card.
- kept: base, adapters, gradients, states, and what autograd keeps for the backward pass. Attention
  is counted as fused kernels do it, without matrices of tokens by tokens. A stack takes more at its
  peak: gradients of activations, values between kernels, workspaces.
- seconds: operations of forward and backward pass, counted, at half of the card's peak.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from raysim.api.components import build_component
from raysim.numbers.tensors import base_of, nbytes
from raysim.numbers.tensors.base import BaseParameter
from raysim.training.stacked.stack_size import StackBytes, stack_bytes
from raysim.workloads.models.pretrained.model import HuggingFace
from raysim.workloads.models.pretrained.reading import staged
from raysim.workloads.models.pretrained.training import choose_trained
from tests.benchmarks.report import heading, line

SIZES: Mapping[str, Mapping[str, Any]] = {
    "1B, as Llama 3.2": {
        **{"hidden_size": 2048, "num_hidden_layers": 16, "intermediate_size": 8192},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256},
        **{"max_position_embeddings": 131_072, "tie_word_embeddings": True},
    },
    "7B, as Llama 2": {
        **{"hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 11_008},
        **{"num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32_000},
        **{"max_position_embeddings": 4096, "tie_word_embeddings": False},
    },
}
CLIENTS = (1, 4, 8)
PEAK = 312e12
"""Operations a second in bfloat16 of an A100, by its data sheet."""
REACHED = 0.5
ADAM = 2
"""Tensors that Adam keeps of each parameter."""
SAMPLES = 1000


@dataclass(frozen=True)
class Costs:
    """Costs of one client's step.

    Attributes:
        estimate: Bytes that `engine.vectorize=auto` takes a stack for.
        base: Bytes of the base.
        trained: Bytes of what is trained.
        kept: Bytes that autograd keeps for the backward pass.
        operations: Operations of a step.
    """

    estimate: StackBytes
    base: int
    trained: int
    kept: int
    operations: int

    def least(self, clients: int) -> int:
        """Return the bytes that a stack keeps at least: values, gradients and states of Adam."""
        return self.base + clients * ((2 + ADAM) * self.trained + self.kept)


def network_of(sizes: Mapping[str, Any], rank: int, dtype: str = "bfloat16") -> nn.Module:
    """Return a language model of the torch's present device, with adapters on a frozen base."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    fields = {"path": ".", "task": "causal-lm", "dtype": dtype, "lora": {"rank": rank}}
    model = build_component(HuggingFace, fields, "model.")
    plain = AutoModelForCausalLM.from_config(
        LlamaConfig(**sizes), dtype=getattr(torch, dtype), attn_implementation="sdpa"
    )
    network = staged(plain.requires_grad_(False), model)
    choose_trained(model, network)
    for parameter in network.parameters():
        if not parameter.requires_grad:  # `set_base` compares addresses, which are all 0 on meta
            parameter.__class__ = BaseParameter
    return network


def costs(network: nn.Module, rows: int, tokens: int) -> Costs:
    """Return the costs of a step of some rows of tokens."""
    x = torch.zeros(rows, tokens, dtype=torch.int64, device=next(network.parameters()).device)
    kept: dict[int, Tensor] = {}

    def note(tensor: Tensor) -> Tensor:
        if tensor.shape[-2:] != (tokens, tokens):
            kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            logits = network.train()(x)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), x.flatten())
        loss.backward()
    of_model = {p.untyped_storage()._cdata for p in network.parameters()}
    return Costs(
        estimate=stack_bytes(network, x[:1], rows, SAMPLES, slots=ADAM),
        base=nbytes({"base": base_of(network)}),
        trained=sum(p.nbytes for p in network.parameters() if p.requires_grad),
        kept=sum(t.untyped_storage().nbytes() for c, t in kept.items() if c not in of_model),
        operations=counter.get_total_flops(),
    )


def rows_of(name: str, found: Costs, memory: float) -> list[str]:
    """Return the lines of a base, by clients in a stack."""
    auto = found.estimate.most(int(memory))
    lines = []
    for clients in CLIENTS:
        estimated = found.estimate.fixed + clients * found.estimate.each
        cells = [f"{size / 1e9:.1f}" for size in (estimated, found.least(clients))]
        fits = "yes" if clients <= auto else "no"
        seconds = clients * found.operations / PEAK / REACHED
        lines.append(line([name, clients, *cells, fits, f"{seconds:.2f}"]))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4, help="rows of a batch")
    parser.add_argument("--tokens", type=int, default=512, help="tokens of a row")
    parser.add_argument("--rank", type=int, default=8, help="rank of the adapters")
    parser.add_argument("--memory", type=float, default=80, help="memory of the card, GB")
    arguments = parser.parse_args()
    titles = "estimated, GB", "kept, GB", "auto takes so many", "seconds of a step"
    print(heading("base", "clients", *titles))
    for name, sizes in SIZES.items():
        with torch.device("meta"):
            network = network_of(sizes, arguments.rank)
        found = costs(network, arguments.rows, arguments.tokens)
        print("\n".join(rows_of(name, found, arguments.memory * 1e9)))


if __name__ == "__main__":
    main()
