"""Tables of adapters on pretrained networks: sweeps, a file each, which `raysim table` runs."""
