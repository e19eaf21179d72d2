"""Launch runs and studies on a cluster: jobs, resource profiles and manifests."""
