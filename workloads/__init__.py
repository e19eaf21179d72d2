"""What is simulated: datasets, partitions and models, registered by name.

Importing this package registers the names; a component's own module is imported when asked for.
"""

from raysim.core.data import DATASETS, MODELS, PARTITIONS

DATASETS.add(
    {
        "mnist": "workloads.datasets.mnist:Mnist",
        "fashion-mnist": "workloads.datasets.mnist:FashionMnist",
    }
)

PARTITIONS.add(
    {
        "iid": "workloads.partitions.iid:Iid",
        "shards": "workloads.partitions.shards:Shards",
        "dirichlet": "workloads.partitions.dirichlet:Dirichlet",
        "resample": "workloads.partitions.resample:Resample",
    }
)

MODELS.add(
    {
        "2nn": "workloads.models.mlp:TwoNN",
        "mnist-cnn-128": "workloads.models.cnn:MnistCnn128",
        "mnist-cnn": "workloads.models.cnn:MnistCnn",
    }
)
