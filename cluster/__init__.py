"""How experiments are launched on a cluster: jobs, resource profiles and manifests."""
