"""Wrong settings, given as overrides."""

from __future__ import annotations

from tests.inputs.case import Case, run

BIG = str(10**30)
DIGITS = "1" * 5000
NESTED = "[" * 100_000
DEEP = "[" * 400 + "]" * 400
DEEP_GROUP = '{"a":' * 400 + "1" + "}" * 400
LONG = "x" * 100_000

NET = ("model.name=huggingface",)
PACK = (*NET, "model.path=minilm")

WHOLE = (
    *("rounds", "clients", "checkpoint_every", "local.epochs", "local.batch_size"),
    *("evaluation.every", "engine.actors", "engine.threads_per_actor"),
)
"""Settings of whole numbers from 1."""
REAL = (
    *("fraction", "local.lr", "local.lr_decay", "local.temperature", "local.weight_decay"),
    *("local.momentum", "evaluation.holdout", "engine.gpus_per_actor", "engine.cpus_per_actor"),
)
FLAGS = ("trace", "local.nesterov", "evaluation.clients", "engine.deterministic")
CHOICES = {
    "weighting": "'examples', 'uniform' or 'tokens'",
    "on_client_error": "'stop' or 'drop'",
    "tracker": "'mlflow' or 'wandb'",
    "engine.backend": "'ray' or 'inline'",
    "engine.precision": "'fp32', 'tf32' or 'bf16'",
}

WHOLE_CASES = [
    run(f"{key}={value}", says=(f"{key}={begins}", allowed))
    for key in WHOLE
    for value, begins, allowed in (
        ("0", "0: ", "greater than or equal to 1"),
        (BIG, "10000", "less than or equal to"),
        ("1.5", "1.5: ", "integer"),
        ("yes", '"yes": ', "integer"),
        (LONG, '"xxx', "integer"),
    )
]
REAL_CASES = [
    run(f"{key}={value}", says=(f"{key}={begins}",))
    for key in REAL
    for value, begins in (("-1", "-1"), ("NaN", "NaN"), ("1e999", "Infinity"), ("[]", "[]"))
]
FLAG_CASES = [
    run(f"{key}={value}", says=(f"{key}={begins}: ", "boolean"))
    for key in FLAGS
    for value, begins in (("1", "1"), ("yes", '"yes"'))
]
CHOICE_CASES = [run(f"{key}=x", says=(f'{key}="x": ', allowed)) for key, allowed in CHOICES.items()]

ODD_CASES = [
    run("analysis=kl_activation", says=('analysis="kl_activation": ', "mean 'kl_activations'?")),
    run("analysis=[cka,nothing]", says=("analysis=", "'nothing': no such analysis; known are")),
    run('analysis=["x:Y"]', says=("analysis=", "'x:Y': no such analysis")),
    run('engine.node_labels={"a": "b", "a": "c"}', says=("node_labels=", "'a' is given twice")),
    run("evaluation.metrics=auc,f2", says=("evaluation.metrics=", "'f2': no such metric; known")),
    run("evaluation.metrics=x", says=("'x': no such metric; known are auc, f1, pre",)),
    run("evaluation.metrics=[f1,confusion]", says=("confusion is a table", "analysis=confusion")),
    run("evaluation.metrics=[3]", says=("evaluation.metrics=[3]: must be names of metrics",)),
    run("analysis=3", says=("analysis=3: ",)),
    run("analysis=[3]", says=("analysis=[3]: must be names of analyses",)),
    run("analysis=aggregation_drop", says=("analysis=aggregation_drop: needs evaluation.clients",)),
    run("analysis=cka", "reference=nowhere", says=("/nowhere: has no model",)),
    run("reference=nowhere", says=("/nowhere: no analysis of this run compares with it",)),
    run("reference=", says=("reference=: must be at least one character",)),
    run("clock.name=device", says=("clock.name=device: no such clock; did you mean 'devices'?",)),
    run("selection.name=uniforms", says=("selection.name=uniforms: no such selection; did you",)),
    run("selection.epsilon=1", says=("selection.epsilon: no such setting",)),
    run("selection.name=power_of_choice", "selection.d=1", "fraction=1", says=("selection.d=1: ",)),
    run(
        "selection.name=round_robin", "method.name=fedbuff", says=("selection.name=round_robin: ",)
    ),
    run("channel.clop.norm=1", says=("channel.clop: no such stage; did you mean 'clip'?",)),
    run("channel.clip.norm=-1", says=("channel.clip.norm=-1: must be greater than 0",)),
    run("channel.clip.limit=1", says=("channel.clip.limit: no such setting",)),
    run("channel.clip=3", says=("channel.clip=3: must be its settings; {} for its defaults",)),
    run("channel=3", says=("channel=3: must map each stage to its settings",)),
    run("channel.nowhere:Stage={}", says=("channel.nowhere:Stage: cannot be imported",)),
    run("clock.speed=0", "clock.name=devices", says=("clock.speed: no such setting",)),
    run("clock.kind=iot", says=("clock.kind: no such setting",)),
    run("clock.name=devices", "clock.table=nowhere.csv", says=("clock.table=", "no such file")),
    run("clock.name=devices", "clock.table=", says=("clock.table=: must be at least one",)),
    run("clock.name=devices", "clock.policy=partial", says=("clock.deadline=none: must be",)),
    run("clock.name=devices", "clock.dropout=2", says=("clock.dropout=2", "must be less than 1")),
    run(f"rounds={DIGITS}", says=("rounds=", "integer")),
    run(f"local.lr={DIGITS}", says=("local.lr=",)),
    run(f"rounds={NESTED}", says=("rounds=",)),
    run(f"rounds={DEEP}", says=("rounds", "nested")),
    run(f"{'a.' * 60_000}a=1", says=("a.a.a", "20 levels")),
    run(f"local={DEEP_GROUP}", says=("local", "nested")),
    run(f"method={DEEP_GROUP}", says=("method", "nested")),
    run(f"method.mu={DEEP}", "method.name=fedprox", says=("method.mu", "nested")),
    run(f"nothing={DEEP}", says=("nothing",)),
    run(f"{LONG}=1", says=("xxx", "no such setting")),
    run(f"{'a.' * 2000}b=1", says=("a.a.",)),
    run(LONG, says=("xxx", "dotted.key=value")),
    run("", says=("''", "dotted.key=value")),
    run("=", says=("'='", "dotted.key=value")),
    run("rounds", says=("'rounds'", "dotted.key=value")),
    run(".=1", says=("no such setting",)),
    run(".rounds=1", says=("no such setting",)),
    run("local.=1", says=("local.: no such setting",)),
    run("local..lr=1", says=("local.", "no such setting")),
    run("rounds=", says=('rounds="": ', "integer")),
    run("rounds=none", says=("rounds=null", "integer")),
    run("rounds=1e3", says=("rounds=1000.0", "integer")),
    run("rounds={}", says=("rounds={}", "integer")),
    run("rounds.x=1", says=("rounds.x: rounds is a value",)),
    run("rounds=1\n2", says=("rounds=", "integer")),
    run("rounds=\x00", says=("rounds=", "integer")),
    run("rounds=\x1b[31m", says=("rounds=", "integer")),
    run("rounds=\udcff", says=("rounds=", "UTF-8")),
    run("weighting=\udcff", says=("weighting=", "UTF-8")),
    run("weighting=tokens", says=("weighting=tokens: ", "tokens that count", "examples")),
    run("local.accumulate=0", says=("local.accumulate=0: ", "greater than or equal to 1")),
    run("local.accumulate=2", "method.name=fedmmd", says=("local.accumulate=2: ", "all samples")),
    run("fracton=0.1", says=("fracton: no such setting", "'fraction'")),
    run("fraction=1e-9", says=("fraction=1e-09: ", "clients=4", "0.25")),
    run("fraction=1.0001", says=("fraction=1.0001: ", "less than or equal to 1")),
    run(f"seed={2**70}", says=(f"seed={2**70}: ", "less than or equal to")),
    run("seed=-1", says=("seed=-1: ", "greater than or equal to 0")),
    run(f"engine.vectorize={BIG}", says=("engine.vectorize=1000", "less than or equal to")),
    run("engine.vectorize=-1", says=("engine.vectorize=-1: ",)),
    run("engine.cpus_per_actor=1e-320", says=("engine.cpus_per_actor=1e-320: ", "0.0001")),
    run("engine.gpus_per_actor=1e-320", says=("engine.gpus_per_actor=1e-320: ", "0.0001")),
    run("engine.gpus_per_actor=1.5", says=("engine.gpus_per_actor=1.5: ", "equal to 1")),
    run("engine.gpus_per_actor=1e300", says=("engine.gpus_per_actor=1e+300: ",)),
    run(
        "engine.accelerator_type=A100",
        says=("engine.accelerator_type=A100: ", "engine.gpus_per_actor above 0"),
    ),
    run(
        "engine.accelerator_type=!A100",
        "engine.gpus_per_actor=1",
        says=('engine.accelerator_type="!A100": ', "letters, digits"),
    ),
    run("engine.accelerator_type=", says=('engine.accelerator_type="": ', "letters, digits")),
    run("engine.accelerator_type=3", says=("engine.accelerator_type=3: ", "string")),
    run(
        "engine.precision=tf32",
        says=("engine.precision=tf32: ", "engine.gpus_per_actor above 0", "a CPU has no TF32"),
    ),
    run("engine.node_labels=spot", says=('engine.node_labels="spot": must be like {',)),
    run('engine.node_labels={"a":1}', says=('engine.node_labels={"a": 1}: must be like {',)),
    run('engine.node_labels={"a":"!b"}', says=('engine.node_labels={"a": "!b"}: must be like',)),
    run('engine.node_labels={"-a":"b"}', says=('engine.node_labels={"-a": "b"}: must be like',)),
    run("engine.node_labels.a=in(b)", says=('engine.node_labels={"a": "in(b)"}: must be like',)),
    run("engine.client_timeout=1e300", says=("engine.client_timeout=1e+300: ", "less than")),
    run("engine.client_timeout=0", says=("engine.client_timeout=0: ", "greater than 0")),
    run("target_accuracy=97", says=("target_accuracy=97: ", "less than or equal to 1")),
    run("target_accuracy=true", says=("target_accuracy=true: ",)),
    run("local.nesterov=true", says=("local.nesterov=true: ", "local.momentum")),
    run("local=3", says=("local=3: ",)),
    run("local=[]", says=("local=[]: ",)),
    run("engine=none", says=("engine=null: ",)),
    run('local={"lr":{"a":1}}', says=("local.lr=", "number")),
    run("clients=41", says=("clients=41: ", "40 training samples")),
    run("clients=1000000000", says=("clients=1000000000: ", "40 training samples")),
    run("partition.name=resample", f"partition.samples={BIG}", says=("partition.samples=1000",)),
    run("partition.name=resample", "partition.samples=41", says=("partition.samples=41: ",)),
    run("partition.limit=0", says=("partition.limit=0: ",)),
    run(f"partition.limit={BIG}", says=("partition.limit=1000", "less than")),
    run(
        "partition.name=shards", f"partition.per_client={BIG}", says=("partition.per_client=1000",)
    ),
    run("partition.name=shards", "partition.per_client=900000000", says=("per_client=900000000",)),
    run("partition.name=shards", f"partition.size={BIG}", says=("partition.size=1000",)),
    run("partition.name=shards", "partition.size=900000000", says=("partition.size=900000000: ",)),
    run("partition.name=classes", "partition.per_client=3", says=("partition.per_client=3: ",)),
    run("partition.name=classes", f"partition.per_client={BIG}", says=("per_client=1000",)),
    run("partition.name=dirichlet", "partition.alpha=1e-320", says=("partition.alpha=1e-320",)),
    run("partition.name=dirichlet", "partition.alpha=1e300", says=("partition.alpha=1e+300: ",)),
    run("partition.name=dirichlet", f"partition.minimum={BIG}", says=("partition.minimum=1000",)),
    run("partition.name=dirichlet", "partition.minimum=11", says=("partition.minimum=11",)),
    run("partition.name=by_key", "partition.key=\x00", says=("partition.key=", "no such column")),
    run("partition.name=by_key", f"partition.key={LONG}", says=("partition.key=xxx",)),
    run("partition.name=by_key", "partition.at_least=3", says=("partition.at_least=3: ",)),
    run("partition.name=sorted_by", "partition.columns=[]", says=("partition.columns=[]: ",)),
    run("partition.name=sorted_by", 'partition.columns=["a"]', says=("columns=a: ",)),
    run("partition.name=color_skew", says=("clients=4: ", "clients=2")),
    run("partition.name=split_classes", says=("clients=4: ", "2 classes")),
    run("dataset.name=synthetic", f"dataset.users={BIG}", says=("dataset.users=1000",)),
    run("dataset.name=synthetic", "dataset.users=900000000", says=("dataset.users=900000000",)),
    run("dataset.name=synthetic", f"dataset.seed={2**70}", says=(f"dataset.seed={2**70}: ",)),
    run("dataset.name=shakespeare", "dataset.stride=0", says=("dataset.stride=0: ",)),
    run("dataset.name=imagenet", f"dataset.class_count={BIG}", says=("dataset.class_count=1000",)),
    run("dataset.name=imagenet", "dataset.image_size=9999", says=("dataset.image_size=9999: ",)),
    run("dataset.name=mimic3", f"dataset.features={BIG}", says=("dataset.features=1000",)),
    run("dataset.name=emnist", "dataset.split=byclas", says=('dataset.split="byclas": ',)),
    run("model.name=vgg9", "model.dropout=1", says=("model.dropout=1: ",)),
    run("model.name=vgg9", says=("model.name=vgg9: ", "(4,)")),
    run(*NET, "model.path=nowhere", says=("model.path=", "nowhere: no such folder, and no pack;")),
    run(*NET, "model.path=org/net", says=("no such folder; if it is", "org/net@COMMIT")),
    run(*NET, "model.path=KIT/small.toml", says=("small.toml: is a file; must be the folder",)),
    run(*NET, "model.path=org/net@v1", says=("model.path=org/net@v1: must name a commit by its",)),
    run(*NET, "model.path=KIT", says=("model.path=KIT: has no config.json",)),
    run(*NET, says=("model.path: must be given",)),
    run(*PACK, "model.random.hidden_size=0", says=("model.random=0: must be greater",)),
    run(*PACK, "model.random=8", says=("model.random=8: ",)),
    run(*PACK, "model.lora.rank=-1", says=("model.lora.rank=-1: must be greater",)),
    run(*PACK, "model.lora.ranks=1", says=("model.lora.ranks: no such setting; did you mean",)),
    run(*PACK, "model.lora=3", says=("model.lora=3: ",)),
    run(*PACK, "model.train=", says=("model.train=: must be auto, head, all, none, or a",)),
    run(*PACK, "model.train=all", says=("model.lora.rank=8: adds nothing to train=all",)),
    run(*PACK, "model.train=none", "model.lora.rank=0", says=("lora.rank=0: leaves nothing to",)),
    run(*PACK, "model.task=causal-lm", "model.lora.rank=0", says=("leaves nothing to train",)),
    run(
        *PACK, "model.dtype=bfloat16", "model.train=*norm*", says=("model.dtype=bfloat16: is for",)
    ),
    run(
        *(*PACK, "model.train=head", "model.lora.rank=0", "model.lora.freeze_a=true"),
        says=("model.lora.freeze_a=true: needs lora.rank",),
    ),
    run(
        *(*PACK, "dataset.name=instructions"),
        says=("model.task=classification: does not go with dataset.name=instructions", "causal-lm"),
    ),
    run(
        *(*PACK, "dataset.name=spam-assassin", "dataset.text=true", "model.task=causal-lm"),
        says=("model.task=causal-lm: does not go with dataset.text=true", "task=classification"),
    ),
    *(
        run(*PACK, "dataset.name=spam-assassin", *more, says=(f"{words} words", "text=true"))
        for words, *more in (("1000",), ("300", "dataset.features=300"))
    ),
    run("model.name=3nn-mimic", "dataset.name=pieces:Thirty", says=("model.name=3nn-mimic: ",)),
    run("method.name=fedprox", "method.mu=-1", says=("method.mu=-1: ",)),
    run("method.name=fedprox", "method.mu=none", says=("method.mu=null: ",)),
    run("method.name=fedma", f"method.sweeps={BIG}", says=("method.sweeps=1000",)),
    run("method.name=fedma", "method.max_width=1e300", says=("method.max_width=1e+300: ",)),
    run("method.name=fednova", f"method.max_epochs={BIG}", says=("method.max_epochs=1000",)),
    run("method.name=divide_and_conquer", f"method.split={BIG}", says=("method.split=1000",)),
    run("method.name=divide_and_conquer", f"method.probe={BIG}", says=("method.probe=1000",)),
    run("method.name=flexlora", says=("method.name=flexlora: needs a model with adapters; set",)),
    run("method.name=flexlora", "method.ranks=2,0", says=("method.ranks=0: must be greater",)),
    run("method.name=hetlora", "method.ranks=2.5", says=("method.ranks=2.5: ",)),
    run("method.name=chain", "method.methods=3", says=("method.methods=3: ",)),
    run("method.name=chain", "method.methods=[]", says=("method.methods=[]: ",)),
    run("method.name=chain", 'method.methods={"x":{}}', says=("x: no such method",)),
    run("method.name=chain", 'method.methods={"fedma":{}}', says=("fedma: cannot be chained",)),
    run("method.name=chain", 'method.methods={"fedprox":3}', says=("method.methods",)),
    run("method.name=chain", f"method.methods={DEEP_GROUP}", says=("method.methods", "nested")),
    run("method=fedprox", says=("method.name",)),
    run("method.name=3", says=("method.name=3: ",)),
    run("method=[]", says=("method=",)),
    run("weighting=w.csv", says=("weighting=", "w.csv: there is no such file")),
    *(
        run(f"method.name={name}", says=(f"{name}: no such method; it is method.name={means}",))
        for name, means in (
            ("fedit", "fedavg with adapters"),
            ("FFA_LoRA", "fedavg with model.lora.freeze_a"),
            ("fedsa-lora", "fedper with method.own"),
        )
    ),
    run("method.name=fedproxx", says=("method.name=fedproxx: ", "'fedprox'")),
    run(f"method.name={LONG}", says=("method.name=xxx", "no such method")),
    run("trace=none", says=("trace=null: ",)),
]
ACCEPTED = [
    Case(("run", "KIT/small.toml", *words), code=0)
    for words in (
        (),
        ("rounds=1", "rounds=1"),
        (f"seed={2**63 - 1}",),
        ("local.epochs=1", "local.batch_size=1000000000"),
        ("checkpoint_every=1000000000", "evaluation.every=1000000000"),
        ("fraction=0.25",),
        ("target_accuracy=none",),
        ("engine.vectorize=1000000000",),
        ("partition.limit=1000000000",),
        ("evaluation.holdout=1e-9",),
    )
]
CASES = [*WHOLE_CASES, *REAL_CASES, *FLAG_CASES, *CHOICE_CASES, *ODD_CASES, *ACCEPTED]
