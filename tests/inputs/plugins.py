"""Components of a user that are missing, abstract, fail, or return the wrong thing."""

from __future__ import annotations

from pathlib import Path

from tests.inputs.case import Case, run
from tests.inputs.settings import LONG

PIECES = Path(__file__).with_name("pieces.txt").read_text(encoding="utf-8")
"""A module of components; a text, as most of it is wrong on purpose."""
MODULES = {
    "pieces.py": PIECES,
    "raising.py": "raise RuntimeError('first line\\nsecond line')\n",
    "syntax.py": "def f(:\n",
    "leaving.py": "import sys\nsys.exit(0)\n",
    "interrupting.py": "1 // 0\n",
    "needing.py": "import no_such_package_at_all\n",
    "circular.py": "from circular import Piece\n",
    "nul.py": "x = 1\0\n",
    "latin.py": b"x = '\xff'\n".decode("latin-1"),
    "tensors.py": "import raysim, torch\nclass Piece(raysim.Method):\n    kept: torch.Tensor\n",
    "untyped.py": "import raysim\nclass Piece(raysim.Method):\n    mu = 0.1\n",
    "odd.py": "Piece = 3\nraysim = None\n",
    "hidden.py": "def __getattr__(name):\n    raise ValueError('hidden')\n",
}

KINDS = ("method", "dataset", "partition", "model")
NAMES = {
    "no_such_module:Piece": "cannot be imported",
    "pieces:NoSuchClass": "cannot be imported",
    "raising:Piece": "RuntimeError: first line second line",
    "syntax:Piece": "SyntaxError",
    "leaving:Piece": "SystemExit",
    "interrupting:Piece": "ZeroDivisionError",
    "needing:Piece": "no_such_package_at_all",
    "circular:Piece": "cannot be imported",
    "nul:Piece": "cannot be imported",
    "untyped:Piece": "the field `mu = 0.1` has no annotation; write its type, as in `mu: float`",
    "tensors:Piece": "a field is of a type that no setting has, <class 'torch.Tensor'>",
    "odd:Piece": "must be a subclass",
    "odd:raysim": "must be a subclass",
    "hidden:Piece": "hidden",
    "json:JSONEncoder": "must be a subclass",
    "os:path": "must be a subclass",
    ":": "must name something of a module",
    ":Piece": "must name something of a module",
    "pieces:": "must name something of a module",
    ".pieces:Tiny": "must name something of a module",
    "pieces:Tiny:Tiny": "must name something of a module",
    "a b:c d": "must name something of a module",
    "KIT/pieces.py:Tiny": "must name something of a module",
    "no\x00such:Piece": "must name something of a module",
    f"{LONG}:Piece": "cannot be imported",
    "\udcff:Piece": "\\udcff",
    "my_file.py": "name a class of the file: my_file:Class",
    "": "no such",
}
NAME_CASES = [
    run(
        f"{kind}.name={name}", says=(f"{kind}.name={name[:10] if name.isprintable() else ''}", said)
    )
    for number, (name, said) in enumerate(NAMES.items())
    for kind in (KINDS[number % 4],)
]
KIND_CASES = [
    run(f"{kind}.name=pieces:{name}", says=(f"{kind}.name=pieces:{name}: ", "must be a subclass"))
    for kind, name in (("method", "Tiny"), ("model", "Halves"), ("dataset", "Net"))
]

DATASETS = {
    "Abstract": "prepare",
    "HalfAbstract": "prepare",
    "NonePrepared": "prepare",
    "NothingPrepared": "prepare",
    "HalfPrepared": "test",
    "TextPrepared": "Path",
    "Lost": "a.arrow",
    "NoArrow": "pieces.py",
    "Damaged": "Damaged-train.arrow",
    "Failing": "ZeroDivisionError",
    "FailingLong": "ValueError: first second",
    "Leaving": "SystemExit",
    "NoArguments": "TypeError",
    "TextShape": "shape",
    "RealShape": "shape",
    "NegativeShape": "shape",
    "HugeShape": "shape",
    "FailingShape": "RuntimeError: no shape",
    "NoClasses": "classes",
    "TextClasses": "classes",
    "HugeClasses": "classes",
    "FewClasses": "label",
    "NegativeLabels": "label",
    "RealLabels": "class numbers",
    "WideLabels": "one loss for each sample",
    "Empty": "0 training samples",
    "EmptyTest": "the test set has no samples",
    "NoneDecoded": "decode",
    "FewDecoded": "decode",
    "ArrayDecoded": "decode",
    "FailingDecoded": "KeyError",
    "NoneScoring": "scoring",
    "FailingScoring": "RuntimeError: no scoring",
    "NotJson": "JSON",
    "OwnName": "name",
    "FailingField": "ZeroDivisionError",
}
PARTITIONS = {
    "AbstractSplit": "split",
    "NoneSplit": "split",
    "ListSplit": "split",
    "FewClients": "3 clients",
    "ManyClients": "5 clients",
    "Hidden": "no samples for client 1",
    "Beyond": "sample 40",
    "Before": "sample -3",
    "FailingSplit": "IndexError",
    "NoSeed": "TypeError",
    "Nothing": "split",
    "NoneView": "client_view",
    "FewView": "client_view",
    "FailingView": "RuntimeError: no view",
    "NoneTestView": "test_view",
    "OddSizes": "sizes",
    "RealSplit": "sizes",
    "WrongSplit": "sizes",
}
MODELS = {
    "AbstractNet": "build",
    "NoneNet": "build",
    "ClassNet": "build",
    "TextNet": "build",
    "FailingNet": "build",
    "HugeNet": "build",
    "NoClass": "TypeError",
    "EmptyNet": "parameters",
    "Frozen": "parameters",
}
METHODS = {
    "AbstractMethod": "init",
    "NoneInit": "init",
    "DictInit": "init",
    "EmptyInit": "model",
    "NoTensors": "deployed",
    "OtherTensors": "deployed",
    "NoTensor": "init",
    "OddInfo": "info",
    "FailingInit": "AttributeError",
    "NoneNetwork": "network",
    "NoneDeployed": "deployed",
    "FewDeployed": "deployed",
    "NoneClient": "client_init",
    "TextBytes": "client_bytes",
    "HugeBytes": "",
}
SELECTIONS = {
    "AbstractSelection": "must define select",
    "NoneSelected": "select returned None; must return a list",
    "TextSelected": "select returned 'all'; must return a list",
    "NoneLeft": "must be at least one client; got []",
    "Beyond99": "must be distinct clients from 0 to 3; got [99]",
    "Twice": "must be distinct clients from 0 to 3; got [1, 1]",
    "FailingSelection": "select failed: RuntimeError: no choice",
    "OddState": "init returned {'a': 'b'}; must return a dict of arrays of numbers",
}
BROKEN = {
    "dataset": DATASETS,
    "partition": PARTITIONS,
    "model": MODELS,
    "method": METHODS,
    "selection": SELECTIONS,
}
UNNAMED = {
    *("Lost", "NoArrow", "Damaged", "FewClasses", "NegativeLabels", "RealLabels", "WideLabels"),
    *("Empty", "EmptyTest", "HugeBytes"),
}
"""Pieces whose error names the data, the disk or a number, and not the class."""
PIECE_CASES = [
    run(
        f"{kind}.name=pieces:{name}",
        says=(said,) if name in UNNAMED else (f"{kind}.", f":{name}", said),
    )
    for kind, names in BROKEN.items()
    for name, said in names.items()
]
OTHER_CASES = [
    run("dataset.name=pieces:OtherShape", says=("does not take samples of 4",)),
    run("dataset.name=pieces:Required", says=("dataset.folder: must be given",)),
    run("dataset.name=pieces:BadDefault", says=("dataset.depth=", "integer")),
    run("dataset.name=pieces:Tiny", "dataset.depth=1", says=("dataset.depth: no such setting",)),
    run("partition.name=pieces:Hungry", says=("client 3 has no samples",)),
    run("dataset.name=pieces:NanInputs", says=("not finite",)),
    run("model.name=pieces:ModuleNet", says=("parameters",)),
    run("model.name=pieces:NoneOutput", says=("model", "outputs")),
    run("model.name=pieces:ListOutput", says=("model", "outputs")),
    run("model.name=pieces:PairOutput", says=("model", "outputs")),
    run("model.name=pieces:FlatOutput", says=("model", "outputs have shape [2]")),
    run("model.name=pieces:FewOutput", says=("outputs",)),
    run("model.name=pieces:NarrowOutput", says=("outputs",)),
    run("model.name=pieces:NanOutput", says=("model", "not finite")),
    run("model.name=pieces:WideInput", says=("does not take samples of 4",)),
    run("model.name=pieces:Net", "method.name=fedmax", says=("needs a model with the stages",)),
]
IN_A_ROUND = {
    "NoneRound": "round returned None",
    "OneRound": "round returned",
    "OddRound": "round returned",
    "OddMetrics": "round returned",
    "FailingRound": "TypeError: no round",
}
"""Methods that fail when the run has begun, and leave its folder."""
ROUND_CASES = [
    Case(("run", "KIT/small.toml", f"method.name=pieces:{name}", "out=run"), (name, said))
    for name, said in IN_A_ROUND.items()
]
ACCEPTED = [
    Case(("run", "KIT/small.toml", *words), code=0)
    for words in (
        ("dataset.name=pieces:Thirty",),
        ("partition.name=pieces:Halves",),
        ("model.name=pieces:Net",),
        ("partition.name=pieces:Repeating",),
    )
]
CASES = [*NAME_CASES, *KIND_CASES, *PIECE_CASES, *OTHER_CASES, *ROUND_CASES, *ACCEPTED]
