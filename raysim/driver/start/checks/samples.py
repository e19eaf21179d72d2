"""Checks of a run's samples against its network, scoring and settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raysim.api.columns import undeclared
from raysim.api.components import called, cause
from raysim.api.method import Method
from raysim.api.rules import Batch
from raysim.api.scoring import IGNORED, TEST, Scoring, cross_entropies
from raysim.config import EvaluationSettings, LocalSettings, Settings
from raysim.driver.evaluation.client_scores import are_classes
from raysim.errors import DataError, SettingsError, visible
from raysim.federation.federation import Federation, open_samples
from raysim.federation.samples import problem_of
from raysim.federation.sequences import lengths_of
from raysim.numbers.arrays import Array
from raysim.numbers.tensors import at_least_float32
from raysim.samples.data import Split
from raysim.training.network import Network
from raysim.user_input import as_typed


def check_labels(federation: Federation, outputs: int) -> None:
    """Check that targets are class numbers, and that the network has outputs for them.

    Raises:
        DataError: targets are not class numbers, or one exceeds the outputs.
    """
    classes = max(outputs, 2)  # one output tells two classes apart
    splits = _splits(federation)
    targets = {name: open_samples(split).y for name, split in splits.items()}
    for name, y in targets.items():
        split = splits[name]
        if y.ndim != 1 or y.dtype.kind not in "iu":
            where = split if isinstance(split, Path) else "the samples"
            raise DataError(f"{where}: targets {y.dtype}{[*y.shape]} are not class numbers [N]")
        if len(wrong := np.flatnonzero((y < 0) | (y >= classes))):
            if federation.in_words:
                raise DataError(_of_words(federation, targets, classes))
            row = int(wrong[0])
            raise DataError(
                f"{_place(federation, name, row)}: label"
                f" {_named(y[row], federation.class_names)}; the model has outputs for classes 0 to"
                f" {classes - 1}"
            )


def _splits(federation: Federation) -> dict[str, Split | Path]:
    """Return the samples of a run by name."""
    local = federation.local_test.samples if federation.local_test else None
    splits = {"train": federation.train, "test": federation.test}
    return {**splits, **({"local": local} if local else {})}


def _place(federation: Federation, name: str, row: int) -> str:
    """Return the name of a sample in errors."""
    split = _splits(federation)[name]
    return f"{split}, sample {row}" if isinstance(split, Path) else federation.place(name, row)


def check_tokens(federation: Federation, outputs: Tensor) -> None:
    """Check that targets of a language model are tokens of its outputs, at positions of the inputs.

    Args:
        federation: The run's samples.
        outputs: Outputs for a few samples.

    Raises:
        DataError: they are not.
    """
    more, tokens = federation.scoring.columns_after_tokens or 0, outputs.shape[-1]
    for name, split in _splits(federation).items():
        x, y = open_samples(split).x, open_samples(split).y
        length = x.shape[1]
        if y.ndim != 2 or y.dtype.kind not in "iu" or y.shape[1] != length + more:
            also = ", its question and whether it is the right answer" if more else ""
            raise DataError(
                f"{name}: targets {y.dtype}{[*y.shape[1:]]} of a sample must be the next token at"
                f" each of {length} positions{also}"
            )
        counts = y[:, :length] != IGNORED
        wrong = counts & ((y[:, :length] < 0) | (y[:, :length] >= tokens))
        if federation.sequences:
            wrong |= counts & (np.arange(length) >= lengths_of(x)[:, None])
        if len(places := np.argwhere(wrong)):
            row, position = places[0].tolist()
            raise DataError(
                f"{_place(federation, name, row)}: target {y[row, position]} at position"
                f" {position}; must be {IGNORED}, or within the sequence a token from 0 to"
                f" {tokens - 1}"
            )


def _named(label: int, names: Sequence[str]) -> str:
    return visible(f"{label} ({names[label]})") if 0 <= label < len(names) else str(label)


def _of_words(federation: Federation, targets: Mapping[str, Array], classes: int) -> str:
    """Return the error message for named labels that exceed the model's outputs."""
    outputs = f"the model has outputs for {classes} labels"
    known = np.unique(targets["train"])
    if len(known) <= classes:  # a label that only a test set has shifts the numbers of others
        for name, y in targets.items():
            if len(new := np.flatnonzero(~np.isin(y, known))):
                row = int(new[0])
                word = visible(repr(federation.class_names[y[row]]))
                return f"{federation.place(name, row)}: no client trains on label {word}; {outputs}"
    words = visible(", ".join(federation.class_names))
    return f"Task.clients: {len(federation.class_names)} labels ({words}); {outputs}"


def check_scoring(settings: Settings, scoring: Scoring) -> None:
    """Check that the scoring meets the needs of the settings.

    Raises:
        SettingsError: a setting needs something else.
    """
    target, metrics = settings.target_accuracy, ", ".join(scoring.metrics) or "none"
    accuracy = scoring.scores.get("accuracy")
    if target is not None and (accuracy is None or not accuracy.larger):
        if accuracy:
            how = undeclared(accuracy.of(TEST._replace(score=accuracy.name)))
            raise SettingsError(f"target_accuracy={target}: {how}")
        raise SettingsError(
            f"target_accuracy={target}: the task's metrics are {metrics}; use target_accuracy=none"
        )
    needs_classes = {
        f"local.temperature={settings.local.temperature}": settings.local.temperature != 1,
        f"temperature.name={settings.temperature.title}": settings.temperature.varies,
        "evaluation.clients=true": settings.evaluation.clients,
        f"evaluation.metrics={','.join(settings.evaluation.metrics)}": settings.evaluation.metrics,
        f"method.{settings.method.needs_classes}": settings.method.needs_classes,
    }
    for setting, needed in needs_classes.items():
        if needed and not scoring.classifies:
            raise SettingsError(f"{setting}: the task is no classification; leave it out")
    whole = "needs a loss of each sample; the task's loss is of whole batches"
    for component in (settings.method, settings.selection):
        if component.needs_sample_losses and scoring.whole_batch:
            raise SettingsError(f"{called(component)}: {whole}")
    if settings.local.accumulate > 1 and scoring.whole_batch:
        raise SettingsError(
            f"local.accumulate={settings.local.accumulate}: the task's loss is of whole batches,"
            " which have no parts; leave it out"
        )
    own_loss = scoring.losses is not cross_entropies
    for setting, needed in of_cross_entropy(settings.local).items():
        if needed and own_loss:
            raise SettingsError(f"{setting}: the task has its own loss; leave it out")


def of_cross_entropy(local: LocalSettings) -> dict[str, bool]:
    """Return settings that change the cross-entropy, and whether they do."""
    return {
        f"local.label_smoothing={local.label_smoothing}": local.label_smoothing != 0,
        f"local.class_weights={as_typed(local.class_weights)}": local.class_weights is not None,
    }


def check_class_weights(local: LocalSettings, outputs: int) -> None:
    """Check that there is a weight for each class.

    Raises:
        SettingsError: there are more or fewer weights.
    """
    classes, weights = max(outputs, 2), local.class_weights
    if isinstance(weights, tuple) and len(weights) != classes:
        raise SettingsError(
            f"local.class_weights={json.dumps(weights)}: must have {classes} numbers, one for each"
            " class"
        )


def check_predictions(evaluation: EvaluationSettings, scoring: Scoring, outputs: Tensor) -> None:
    """Check a scoring's predictions from the outputs of a few samples.

    Raises:
        SettingsError: `predict` fails, or returns no tensor with a row for each sample; or settings
            ask for accuracies of single clients, but there is neither a class for each sample nor a
            metric `accuracy`.
    """
    try:
        predicted: Any = scoring.predict(outputs.clone())
    except Exception as error:  # a user's function may raise anything
        raise SettingsError(f"Scoring.predict: {[*outputs.shape]}: {cause(error)}") from error
    if not isinstance(predicted, Tensor) or predicted.shape[:1] != outputs.shape[:1]:
        what = (
            f"a tensor {[*predicted.shape]}"
            if isinstance(predicted, Tensor)
            else type(predicted).__name__
        )
        raise SettingsError(
            f"Scoring.predict: for outputs {[*outputs.shape]} it returned {what}; must return a"
            " tensor with a row for each sample"
        )
    known = are_classes(predicted.detach().cpu().numpy()) or "accuracy" in scoring.metrics
    if evaluation.clients and not known:
        kind = str(predicted.dtype).removeprefix("torch.")
        raise SettingsError(
            f"evaluation.clients=true: needs a class for each sample, and Scoring.predict returns"
            f" {kind} {[*predicted.shape]}; give Scoring.metrics an `accuracy`, or leave it out"
        )


def check_without_test(settings: Settings) -> None:
    """Check that no setting needs a test set; a task or a run may lack one.

    Raises:
        SettingsError: a setting needs a test set.
    """
    needs = {
        f"target_accuracy={settings.target_accuracy}": (
            settings.target_accuracy is not None and not settings.evaluation.holdout
        ),
        "evaluation.clients=true": settings.evaluation.clients,
        f"analysis={','.join(settings.analysis)}": settings.analysis,
    }
    for setting, needed in needs.items():
        if needed:
            advice = "give Task.test, or a dataset that has one"
            lacking = advice if settings.evaluation.test else "use evaluation.test=true"
            raise SettingsError(f"{setting}: needs a test set; {lacking}, or leave it out")


def check_samples(method: Method, module: nn.Module, samples: Batch) -> Tensor:
    """Check that a network takes the data, and the scoring the outputs; return the outputs.

    If a method needs stages, the network must be composed of them.

    Raises:
        DataError: the samples are not finite.
        SettingsError: network, scoring or stages do not fit.
        RunError: the network registers a buffer when it is called.
    """
    if problem := problem_of(samples):
        raise DataError(f"the first samples of the test set: {problem}")
    network = Network(module).eval()
    outputs = _outputs_of(network, samples)
    network.bindings.check_registered()
    if method.staged:
        _check_composition(method, network, samples)
    network.bindings.restore()  # for copies, because a call may bind other buffers
    if outputs.dim() < 2 or len(outputs) != len(samples.y) or not outputs.shape[-1]:
        raise SettingsError(
            f"the model's outputs have shape {[*outputs.shape]}: must be [B, ...] with two"
            f" dimensions or more, here B={len(samples.y)}"
        )
    _check_task(samples, outputs)
    if not outputs.isfinite().all():
        raise SettingsError(
            "the model's outputs are not finite, on the first samples of the test set"
        )
    if samples.scoring.whole_batch:
        loss, shapes = _called(samples, samples.loss, outputs)
        if loss.shape:
            raise SettingsError(
                f"scoring.losses: must return one loss [] with whole_batch=True; for {shapes} it"
                f" returned {[*loss.shape]}"
            )
        return outputs
    whole_batch = _losses(samples, outputs)
    rows = [slice(row, row + 1) for row in range(len(samples.y))]
    alone = [_losses(samples._replace(y=samples.y[row]), outputs[row]) for row in rows]
    # [B, 1] minus [B] is [B, B]: its mean over rows has the right shape but mixes samples.
    if not torch.allclose(whole_batch, torch.cat(alone), 1e-3, 1e-5, equal_nan=True):
        raise SettingsError(
            "scoring.losses: a sample's loss depends on other samples of its batch; compare"
            f" outputs {[*outputs.shape]} with targets {[*samples.y.shape]} row by row"
        )
    return outputs


def _check_task(samples: Batch, outputs: Tensor) -> None:
    """Check that a language model has outputs of each position, and a classification has not.

    Raises:
        SettingsError: they are not.
    """
    shape, advice = [*outputs.shape], "of a pretrained network with model.task="
    if samples.scoring.columns_after_tokens is not None and outputs.dim() != 3:
        raise SettingsError(
            f"the model's outputs have shape {shape}: a language model's are [B, T, V], as those"
            f" {advice}causal-lm"
        )
    if samples.scoring.classifies and samples.y.dim() == 1 and outputs.dim() == 3:
        raise SettingsError(
            f"the model's outputs have shape {shape}: a classification's are [B, C], as those"
            f" {advice}classification"
        )


def _called(
    samples: Batch, losses: Callable[[Tensor], Tensor], outputs: Tensor
) -> tuple[Tensor, str]:
    """Return the result of a user's losses for outputs, and the shapes of the inputs in words.

    Raises:
        SettingsError: the function fails.
    """
    shapes = f"outputs {[*outputs.shape]} and targets {[*samples.y.shape]}"
    try:
        return torch.as_tensor(losses(outputs)), shapes
    except Exception as error:  # a user's function may raise anything
        raise SettingsError(f"scoring.losses: {shapes}: {' '.join(str(error).split())}") from error


def _losses(samples: Batch, outputs: Tensor) -> Tensor:
    """Return the losses of a few samples [B]."""
    losses, shapes = _called(samples, samples.losses, outputs)
    if losses.shape != samples.y.shape[:1]:
        raise SettingsError(
            f"scoring.losses: must return one loss for each sample [{len(samples.y)}]; for {shapes}"
            f" it returned {[*losses.shape]}"
        )
    return losses


def _outputs_of(network: Network, sample: Batch) -> Tensor:
    """Return a network's outputs for a few samples."""
    try:
        with torch.no_grad():
            outputs = network.forward(sample.x.clone()).logits
    except SettingsError:
        raise
    except Exception as error:  # a user's module may raise anything
        shape = "x".join(map(str, sample.x.shape[1:])) or "one number"
        cause = " ".join(str(error).split())
        if sample.x.is_floating_point() and "indices" in cause and _has_embedding(network):
            cause = (
                f"its embedding needs whole numbers, and these are {sample.x.dtype}; for a table,"
                " dataset.categories=COLUMN keeps them"
            )
        raise SettingsError(f"the model does not take samples of {shape}: {cause}") from error
    return at_least_float32(_checked(outputs))


def _has_embedding(network: Network) -> bool:
    return any(isinstance(module, nn.Embedding) for module in network.module.modules())


def _checked(outputs: object) -> Tensor:
    """Check and return a module's outputs.

    Raises:
        SettingsError: the outputs are not a real tensor.
    """
    if isinstance(outputs, Tensor) and not outputs.is_complex():
        return outputs
    problem = (
        f"are {outputs.dtype}; must be real"
        if isinstance(outputs, Tensor)
        else f"are of type {type(outputs).__name__}; must be a tensor"
    )
    raise SettingsError(f"the model's outputs {problem}")


def _check_composition(method: Method, network: Network, sample: Batch) -> None:
    """Check that a module's own forward is its three stages.

    Raises:
        SettingsError: it differs, or the stages fail.
    """
    try:
        with torch.no_grad():
            logits = network.module(sample.x.clone())
            composed = network.compose(sample.x.clone())
            difference = float((composed - logits).abs().max())
    except Exception as error:  # a user's module may raise anything
        problem = "they fail: " + " ".join(str(error).split())
    else:
        if torch.allclose(composed, logits, equal_nan=True):
            return
        problem = f"their logits differ by {difference:.2g} on a sample"
    raise SettingsError(
        f"method.name={method.title}: needs a model whose forward is head(hidden(features(x)));"
        f" composed that way, {problem}"
    )
