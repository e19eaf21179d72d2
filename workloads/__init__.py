"""What is simulated: datasets, partitions and models, registered by name.

Importing this package registers the names; a component's own module is imported when asked for.
"""

from raysim.core.data import DATASETS, MODELS, PARTITIONS

DATASETS.add(
    {
        "mnist": "workloads.datasets.mnist:Mnist",
        "fashion-mnist": "workloads.datasets.mnist:FashionMnist",
        "emnist": "workloads.datasets.emnist:Emnist",
        "cifar10": "workloads.datasets.cifar:Cifar10",
        "cifar100": "workloads.datasets.cifar:Cifar100",
        "aptos": "workloads.datasets.medical:Aptos",
        "chest-xray": "workloads.datasets.medical:ChestXray",
        "imagenet": "workloads.datasets.imagenet:ImageNet",
        "femnist": "workloads.datasets.femnist:Femnist",
        "shakespeare": "workloads.datasets.shakespeare:Shakespeare",
        "mimic3": "workloads.datasets.mimic3:Mimic3",
        "synthetic": "workloads.datasets.synthetic:Synthetic",
    }
)

PARTITIONS.add(
    {
        "iid": "workloads.partitions.iid:Iid",
        "shards": "workloads.partitions.shards:Shards",
        "dirichlet": "workloads.partitions.dirichlet:Dirichlet",
        "resample": "workloads.partitions.resample:Resample",
        "classes": "workloads.partitions.classes:Classes",
        "split_classes": "workloads.partitions.split_classes:SplitClasses",
        "class_imbalance": "workloads.partitions.class_imbalance:ClassImbalance",
        "color_skew": "workloads.partitions.color_skew:ColorSkew",
        "permuted": "workloads.partitions.permuted:Permuted",
        "by_key": "workloads.partitions.by_key:ByKey",
        "sorted_by": "workloads.partitions.sorted_by:SortedBy",
        "proportions": "workloads.partitions.proportions:Proportions",
    }
)

MODELS.add(
    {
        "2nn": "workloads.models.mlp:TwoNN",
        "mnist-cnn-128": "workloads.models.cnn:MnistCnn128",
        "mnist-cnn": "workloads.models.cnn:MnistCnn",
        "cifar-cnn-3": "workloads.models.cifar:CifarCnn3",
        "cifar-cnn-5": "workloads.models.cifar:CifarCnn5",
        "cifar-cnn-2": "workloads.models.cifar:CifarCnn2",
        "flexchill-cnn": "workloads.models.cifar:FlexChillCnn",
        "flexchill-dnn": "workloads.models.mlp:FlexChillDnn",
        "vgg9": "workloads.models.vgg:Vgg9",
        "char-lstm": "workloads.models.lstm:CharLstm",
        "3nn-mimic": "workloads.models.mlp:ThreeNNMimic",
        "synthetic-mlp": "workloads.models.mlp:SyntheticMlp",
        "resnet18": "workloads.models.resnet:ResNet18",
        "resnet50": "workloads.models.resnet:ResNet50",
    }
)
