"""Pretrained networks in the formats of Hugging Face: packs, tokenizers, network, adapters."""
