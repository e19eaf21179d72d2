"""Datasets, partitions and models, registered by name.

Importing this package registers the names; the module of a component is imported on first use.
"""

from raysim.samples.data import DATASETS, MODELS, PARTITIONS

DATASETS.add(
    {
        "mnist": "raysim.workloads.datasets.mnist:Mnist",
        "fashion-mnist": "raysim.workloads.datasets.mnist:FashionMnist",
        "emnist": "raysim.workloads.datasets.mnist:Emnist",
        "cifar10": "raysim.workloads.datasets.cifar:Cifar10",
        "cifar100": "raysim.workloads.datasets.cifar:Cifar100",
        "aptos": "raysim.workloads.datasets.medical:Aptos",
        "chest-xray": "raysim.workloads.datasets.medical:ChestXray",
        "imagenet": "raysim.workloads.datasets.imagenet:ImageNet",
        "femnist": "raysim.workloads.datasets.femnist:Femnist",
        "shakespeare": "raysim.workloads.datasets.shakespeare:Shakespeare",
        "mimic3": "raysim.workloads.datasets.mimic3:Mimic3",
        "synthetic": "raysim.workloads.datasets.synthetic:Synthetic",
        "plane": "raysim.workloads.datasets.plane:Plane",
        "files": "raysim.workloads.datasets.files.dataset:Files",
        "flights": "raysim.workloads.datasets.flights:Flights",
        "instructions": "raysim.workloads.datasets.instructions:Instructions",
        "spam-assassin": "raysim.workloads.datasets.spam:SpamAssassin",
        "huggingface": "raysim.workloads.datasets.files.saved:HuggingFace",
    }
)

PARTITIONS.add(
    {
        "iid": "raysim.workloads.partitions.iid:Iid",
        "shards": "raysim.workloads.partitions.shards:Shards",
        "dirichlet": "raysim.workloads.partitions.dirichlet:Dirichlet",
        "resample": "raysim.workloads.partitions.resample:Resample",
        "classes": "raysim.workloads.partitions.classes:Classes",
        "split_classes": "raysim.workloads.partitions.split_classes:SplitClasses",
        "class_imbalance": "raysim.workloads.partitions.class_imbalance:ClassImbalance",
        "color_skew": "raysim.workloads.partitions.color_skew:ColorSkew",
        "permuted": "raysim.workloads.partitions.permuted:Permuted",
        "by_key": "raysim.workloads.partitions.by_key:ByKey",
        "natural": "raysim.workloads.partitions.natural:Natural",
        "natural_or_iid": "raysim.workloads.partitions.natural_or_iid:NaturalOrIid",
        "sorted_by": "raysim.workloads.partitions.sorted_by:SortedBy",
        "proportions": "raysim.workloads.partitions.proportions:Proportions",
    }
)

MODELS.add(
    {
        "linear": "raysim.workloads.models.mlp:Linear",
        "2nn": "raysim.workloads.models.mlp:TwoNN",
        "mnist-cnn-128": "raysim.workloads.models.cnn:MnistCnn128",
        "mnist-cnn": "raysim.workloads.models.cnn:MnistCnn",
        "cifar-cnn-3": "raysim.workloads.models.cnn:CifarCnn3",
        "cifar-cnn-5": "raysim.workloads.models.cnn:CifarCnn5",
        "cifar-cnn-2": "raysim.workloads.models.cnn:CifarCnn2",
        "flexchill-cnn": "raysim.workloads.models.cnn:FlexChillCnn",
        "flexchill-dnn": "raysim.workloads.models.mlp:FlexChillDnn",
        "pfl-cifar-cnn": "raysim.workloads.models.cnn:PflCnn",
        "vgg9": "raysim.workloads.models.cnn:Vgg9",
        "char-lstm": "raysim.workloads.models.lstm:CharLstm",
        "3nn-mimic": "raysim.workloads.models.mlp:ThreeNNMimic",
        "synthetic-mlp": "raysim.workloads.models.mlp:SyntheticMlp",
        "by-shape": "raysim.workloads.models.by_shape:ByShape",
        "resnet18": "raysim.workloads.models.resnet:ResNet18",
        "resnet50": "raysim.workloads.models.resnet:ResNet50",
        "huggingface": "raysim.workloads.models.pretrained.model:HuggingFace",
    }
)
