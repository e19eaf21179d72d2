"""Scoring: the loss that clients minimise, and the metrics of an evaluation.

Legend: B batch, N samples of a set, C classes; T positions of a sequence, V tokens to choose from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raysim.api.columns import Better, Column, Scored, by_name
from raysim.errors import SettingsError
from raysim.numbers.arrays import Array, Floats

FORWARD_ROWS = 250
"""Samples of one forward pass without training.

On one core, 2000 images of mnist-cnn-128 took 0.50 s this way, and 0.76 s with 1000 samples a pass,
because the activations then exceed the cache. cifar-cnn-5 took 0.83 and 1.12 s, resnet18 1.88 and
2.20 s.
"""
GPU_FORWARD_ROWS = 1000
"""The same on a GPU, which is mostly idle with 250 images of a small network.

On an H200, evaluation by 250 took a third of an evaluated round (tests/benchmarks/RESULTS-GPU.md).
A loss of whole batches is one of FORWARD_ROWS samples there, too.
"""
FORWARD_TOKENS, GPU_FORWARD_TOKENS = 1024, 16_384
"""Positions of sequences of one forward pass without training, on a CPU and on a GPU.

Logits of 1024 positions over 49,152 tokens take 201 MB.
"""
NO_TOKEN = -1
"""Token that pads a sequence."""
IGNORED = -100
"""Target of a position that does not count; cross_entropy's `ignore_index`."""
NO_QUESTION = -1
"""Question of a row that is no choice of a question."""
AT_TEMPERATURE = "loss_at_temperature"
"""Score: the loss at `local.temperature`, in runs with another value than 1."""
SPREAD = ("mean", *(f"d{tenth}" for tenth in range(1, 10)))
"""Figures of a spread over clients: its mean, and its deciles; d5 is the median."""
JAIN = "jain"
"""Jain's index; larger is fairer, for a loss or an error, too."""
UNEQUAL, GAIN = ("deviation", "worst_tenth", JAIN), "gain"
"""Further figures of a spread over clients: how unequal they are, and the mean gain of their models
over the global one."""
PERSONAL, FINETUNED = "personal", "finetuned"
"""Models that are scored in addition to the global one: clients' deployed and fine-tuned models."""
SEEN, UNSEEN, NEW = "seen", "unseen", "new"
"""Clients that have trained, that never did, and that are kept out of training."""
TEST, HOLDOUT, LOCAL_TEST, TRAIN_SET = (
    Scored(name) for name in ("test", "holdout", "local_test", "train_set")
)
"""The test set; held-out samples, the clients' own test samples, and their training samples."""
LOSS, ACCURACY = Column("loss", "smaller"), Column("accuracy", "larger", "%", title="accuracy")
LOSSES = by_name([LOSS, LOSS.named(AT_TEMPERATURE)])
"""Losses that the engine scores."""
CLIENT_ACCURACY = Column("client_accuracy", "larger", "%").of(Scored("client_accuracy"))
TRAINED_ACCURACY = Column("trained_accuracy", "larger", "%").of(Scored("trained_accuracy"))
"""Accuracies of single clients, and of their trained models before the aggregation; columns hold
their spreads."""
Metric = Callable[[Array, Array], float]


def spread_column(score: Column, figure: str) -> Column:
    """Return the column of a figure of the spread of clients' scores, one of `score`."""
    better: dict[str, Better | None] = {UNEQUAL[0]: "smaller", JAIN: "larger"}
    scored = score.scored or Scored(score.name)
    unit = "" if figure == JAIN else score.unit
    return Column("_", better.get(figure, score.better), unit).of(scored._replace(spread=figure))


@lru_cache
def evaluated_columns(scores: tuple[Column, ...]) -> Mapping[str, Column]:
    """Return the columns by name that evaluations of a task with some scores may have."""
    return by_name(_evaluated_columns(scores))


def _evaluated_columns(scores: Iterable[Column]) -> Iterator[Column]:
    models = ("", PERSONAL, FINETUNED)
    of_clients = [
        LOCAL_TEST._replace(model=model, clients=clients)
        for model in models
        for clients in ("", SEEN, UNSEEN, NEW)
    ]
    sets = [TEST, *(scored._replace(model=m) for scored in (HOLDOUT, TRAIN_SET) for m in models)]
    for score in scores:
        yield from (score.of(scored._replace(score=score.name)) for scored in sets)
        for column in (score.of(scored._replace(score=score.name)) for scored in of_clients):
            yield from (column, *(spread_column(column, f) for f in (*SPREAD, *UNEQUAL, GAIN)))
    for column in (CLIENT_ACCURACY, TRAINED_ACCURACY):
        yield from (spread_column(column, figure) for figure in SPREAD)


def identity(outputs: Tensor) -> Tensor:
    """Return the outputs unchanged."""
    return outputs


@dataclass(frozen=True)
class Scoring:
    """Loss and metrics of a task; its functions are called with outputs in float32.

    `Scoring(losses, {"mae": mae}, columns=[Column("mae", better="smaller")])` gives the columns
    `test_loss` and `test_mae`. A classification with another loss is
    `dataclasses.replace(CLASSIFICATION, losses=...)`.

    Attributes:
        losses: `losses(outputs [B, ...], targets [B, ...])`: one loss for each sample [B], of
            tensors and free of branches on their values; with `whole_batch` the batch's loss [].
        metrics: By name, `metric(predictions [N, ...], targets [N, ...])`: the score of a set of
            samples, computed from arrays.
        predict: `predict(outputs [B, ...])`: the predictions [B, ...] that metrics compare.
        compare: `compare(outputs [B, ...], targets [B, ...])`: figures [B, ...] of a comparison,
            which metrics are given in place of predictions; for outputs that are too many to keep.
            None: metrics compare.
        classifies: Whether targets are class numbers [B] and outputs logits [B, C]; a temperature,
            and accuracies of single clients, need it.
        weights: `weights(targets [B, ...])`: the weight of each sample [B] in the mean loss, which
            is the sum of `losses` over the sum of weights. None: equal weights of 1.
        whole_batch: Whether samples of a batch are compared with each other, as by a contrastive
            loss or Cox's; evaluations take batches of FORWARD_ROWS samples, and average them.
        reported: The scoring with the reported loss, if this one is for training alone.
        columns: For each metric, which of two scores is better, and their unit. Tables compare no
            rows, and a run chooses no best round, by an undeclared metric. The engine ignores a
            declaration that names no metric.
    """

    losses: Callable[[Tensor, Tensor], Tensor]
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    predict: Callable[[Tensor], Tensor] = identity
    compare: Callable[[Tensor, Tensor], Tensor] | None = None
    classifies: bool = False
    weights: Callable[[Tensor], Tensor] | None = None
    whole_batch: bool = False
    reported: Scoring | None = None
    columns: Sequence[Column] = ()

    def __post_init__(self) -> None:
        """Check the metrics' names, and their declarations.

        Raises:
            SettingsError: a name is a column of the engine, or a declaration is no `Column`.
        """
        of_engine = dict.fromkeys(LOSSES, "the loss")
        of_engine |= {"samples": "the number of a client's samples", "score": "the main score"}
        of_engine |= {
            f"{m}_{end}": f"the spread of {m!r} over clients"
            for m in self.metrics
            for end in SPREAD
        }
        for name in self.metrics:
            if name in of_engine:
                raise SettingsError(
                    f"Scoring.metrics: {name!r} is the engine's name of {of_engine[name]}; choose"
                    " another name"
                )
        for column in self.columns:
            if not isinstance(column, Column):
                raise SettingsError(f"Scoring.columns: {column!r:.80} is no raysim.Column")

    @property
    def scores(self) -> dict[str, Column]:
        """The loss and the metrics, as they are declared, by name."""
        declared = by_name(self.columns)
        return by_name([LOSS, *(declared.get(name, Column(name)) for name in self.metrics)])

    @property
    def columns_after_tokens(self) -> int | None:
        """Number of columns of targets after the tokens; None if targets are no tokens."""
        return next((columns for losses, columns in OF_TOKENS if self.losses is losses), None)

    def compared(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return what metrics are given of a batch: predictions, or figures of a comparison."""
        return self.compare(outputs, targets) if self.compare else self.predict(outputs)

    def total_weight(self, targets: Tensor) -> float:
        """Return the number by which the sum of the losses of a set of samples is divided."""
        if self.weights is None or self.whole_batch:
            return len(targets)
        return float(self.weights(targets).sum())

    def sample_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample [B]; a user's function may change its arguments.

        Raises:
            SettingsError: the loss is of whole batches.
        """
        if self.whole_batch:
            raise SettingsError("the task's loss is of whole batches: samples have none alone")
        if self.losses in CHANGE_NOTHING:
            return self.losses(outputs, targets)
        return self.losses(outputs.clone(), targets.clone())

    def mean_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch without padding."""
        if self.whole_batch:
            return self.losses(outputs.clone(), targets.clone())
        if self.losses is not cross_entropies:
            return self.sample_losses(outputs, targets).mean()
        if outputs.shape[-1] == 1:
            targets = targets.to(outputs.dtype)
            return F.binary_cross_entropy_with_logits(outputs.squeeze(-1), targets)
        return F.cross_entropy(outputs, targets)


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each sample [B]; binary for one logit per sample.

    It has no indexing: its backward pass is a scatter for stacked clients, and CUDA's deterministic
    scatter sorts, in dozens of kernels a step.
    """
    if logits.shape[-1] == 1:
        labels = labels.to(logits.dtype)
        return F.binary_cross_entropy_with_logits(logits.squeeze(-1), labels, reduction="none")
    classes = torch.arange(logits.shape[-1], device=logits.device)
    others = labels.unsqueeze(-1) != classes  # [B, C]
    return -F.log_softmax(logits, dim=-1).masked_fill(others, 0).sum(-1)


def smoothed_losses(
    smoothing: float, class_weights: tuple[float, ...], logits: Tensor, labels: Tensor
) -> Tensor:
    """Return the smoothed, weighted cross-entropy of each sample [B], as torch's without reduction.

    Args:
        smoothing: Share of the target that is spread over all classes.
        class_weights: Weight of each class [C]; empty for 1. Further classes have weight 0.
        logits: Logits [B, C]; with one logit per sample there are two classes.
        labels: Class numbers [B].
    """
    if logits.shape[-1] == 1:
        log_p = F.logsigmoid(torch.cat([-logits, logits], dim=-1))
    else:
        log_p = F.log_softmax(logits, dim=-1)
    classes = torch.arange(log_p.shape[-1], device=logits.device)
    target = (labels.unsqueeze(-1) == classes).to(log_p.dtype) * (1 - smoothing)
    target = target + smoothing / log_p.shape[-1]  # [B, C]
    if class_weights:
        behind = (0.0,) * (log_p.shape[-1] - len(class_weights))
        target = target * _row((*class_weights, *behind), log_p)
    return -(target * log_p).sum(-1)


def weights_of(class_weights: tuple[float, ...], labels: Tensor) -> Tensor:
    """Return the weight of each sample's class [B]."""
    classes = torch.arange(len(class_weights), device=labels.device)
    is_of_class = labels.unsqueeze(-1) == classes  # [B, C]
    row = _row(class_weights, torch.empty((), dtype=torch.float64, device=labels.device))
    return row.masked_fill(~is_of_class, 0).sum(-1)


def balanced_weights(labels: Array) -> tuple[float, ...]:
    """Return the weight of each class up to the last one, from class numbers [N].

    N / (classes * count), as scikit-learn's `balanced`, for classes with samples; 0 for others. The
    mean over all samples is 1.
    """
    counts = np.bincount(labels).tolist()
    classes = sum(count > 0 for count in counts)
    return tuple(len(labels) / (classes * count) if count else 0.0 for count in counts)


def _row(numbers: tuple[float, ...], like: Tensor) -> Tensor:
    """Return numbers as a tensor; by kernels, as a CUDA graph records no copy from the host."""
    return torch.cat([like.new_full((1,), number) for number in numbers])


def for_training(
    scoring: Scoring, smoothing: float, class_weights: tuple[float, ...] | None
) -> Scoring:
    """Return the scoring for training; it reports the given one's loss."""
    if not smoothing and class_weights is None:
        return scoring
    return replace(
        scoring,
        losses=partial(smoothed_losses, smoothing, class_weights or ()),
        weights=partial(weights_of, class_weights) if class_weights else None,
        reported=scoring,
    )


def predicted_classes(logits: Tensor) -> Tensor:
    """Return the class of each sample [B]; with one logit per sample, whether it is positive."""
    return (logits.argmax(1) if logits.shape[-1] > 1 else logits.squeeze(-1) > 0).int()


def accuracy(predicted: Array, labels: Array) -> float:
    """Return the fraction of predicted classes [N] that are the labels [N]."""
    return int(np.count_nonzero(predicted == labels)) / len(labels)


def macro_f1(predicted: Array, labels: Array) -> float:
    """Return the mean of F1_c = 2 TP_c / (actual_c + predicted_c).

    The mean is over the classes c that occur among the labels [N] or the predicted classes [N];
    TP_c counts the samples of class c that were predicted as such.
    """
    classes = 1 + int(max(labels.max(), predicted.max()))
    correct = labels[predicted == labels]
    totals = np.bincount(labels, minlength=classes) + np.bincount(predicted, minlength=classes)
    present = totals > 0
    return float(np.mean(2 * np.bincount(correct, minlength=classes)[present] / totals[present]))


CLASSIFICATION = Scoring(
    cross_entropies,
    {"accuracy": accuracy, "macro_f1": macro_f1},
    predicted_classes,
    classifies=True,
    columns=(ACCURACY, Column("macro_f1", "larger", "%")),
)


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of the cross-entropies of each sequence's tokens [B].

    Args:
        logits: Logits [B, T, V].
        targets: Tokens [B, T] or more; IGNORED where none counts. Those after T do not count.
    """
    return _of_positions(logits, targets).sum(1)


def _of_positions(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each token [B, T]; 0 where none counts."""
    targets = targets[:, : logits.shape[1]]
    flat, wanted = logits.flatten(0, 1), targets.flatten()
    losses = F.cross_entropy(flat, wanted, ignore_index=IGNORED, reduction="none")
    return losses.view(targets.shape)


def token_counts(targets: Tensor) -> Tensor:
    """Return the number of each sequence's tokens that count [B], of targets [B, T]."""
    return (targets != IGNORED).sum(1)


def predicted_tokens(logits: Tensor) -> Tensor:
    """Return the likeliest token of each position [B, T]."""
    return logits.argmax(-1)


def token_figures(logits: Tensor, targets: Tensor) -> Tensor:
    """Return figures of each sequence [B, 3]: its loss, its tokens, and those predicted right."""
    targets = targets[:, : logits.shape[1]]
    is_right = predicted_tokens(logits) == targets
    figures = [token_losses(logits, targets), token_counts(targets), is_right.sum(1)]
    return torch.stack([figure.to(logits.dtype) for figure in figures], dim=1)


def perplexity(figures: Array, targets: Array) -> float:
    """Return the exponential of the mean loss of a token, from figures [N, 3]."""
    losses, counts, _ = figures.astype(np.float64).sum(0)
    return float(np.exp(losses / counts)) if counts else float("nan")


def token_accuracy(figures: Array, targets: Array) -> float:
    """Return the share of tokens that are predicted right, from figures [N, 3]."""
    _, counts, right = figures.astype(np.float64).sum(0)
    return float(right / counts) if counts else float("nan")


def exact_match(figures: Array, targets: Array) -> float:
    """Return the share of sequences all of whose tokens are predicted right, from figures [N, 3].

    Sequences without a token that counts are left out.
    """
    counted = figures[figures[:, 1] > 0]
    return float((counted[:, 1] == counted[:, 2]).mean()) if len(counted) else float("nan")


LANGUAGE_MODEL = Scoring(
    token_losses,
    {"perplexity": perplexity, "accuracy": token_accuracy, "exact_match": exact_match},
    predicted_tokens,
    token_figures,
    weights=token_counts,
    columns=(
        Column("perplexity", "smaller", title="perplexity"),
        ACCURACY,
        Column("exact_match", "larger", "%", title="exact match"),
    ),
)
"""Scoring of outputs [B, T, V] for targets [N, T]: the token to predict at each position."""


def multiple_choice(*, by_length: bool = True) -> Scoring:
    """Return the scoring of questions with several answers, of which the likeliest is chosen.

    Each row is a question with one answer. Its targets [N, T + 2] are those of `LANGUAGE_MODEL`,
    the question's number (NO_QUESTION for none), and 1 for the right answer, else 0. Rows of wrong
    answers count in `choice_accuracy` alone.

    Args:
        by_length: Whether likelihoods are divided by the answer's tokens.
    """
    metrics: dict[str, Metric] = {
        name: partial(_of_right_answers, metric) for name, metric in LANGUAGE_MODEL.metrics.items()
    }
    return replace(
        LANGUAGE_MODEL,
        losses=answer_losses,
        metrics={**metrics, "choice_accuracy": partial(choice_accuracy, by_length)},
        compare=answer_figures,
        weights=answer_counts,
        columns=(
            *LANGUAGE_MODEL.columns,
            Column("choice_accuracy", "larger", "%", title="choices"),
        ),
    )


def answer_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each right answer [B], 0 for others, of targets [B, T + 2]."""
    return token_losses(logits, targets[:, :-2]).masked_fill(targets[:, -1] == 0, 0)


def answer_counts(targets: Tensor) -> Tensor:
    """Return the number of tokens that count [B], of targets [B, T + 2]; 0 for wrong answers."""
    return token_counts(targets[:, :-2]).masked_fill(targets[:, -1] == 0, 0)


def answer_figures(logits: Tensor, targets: Tensor) -> Tensor:
    """Return figures of each answer [B, 3], as `token_figures`, of targets [B, T + 2]."""
    return token_figures(logits, targets[:, :-2])


def _of_right_answers(metric: Metric, figures: Array, targets: Array) -> float:
    is_right = targets[:, -1] != 0
    return metric(figures[is_right], targets[is_right])


def choice_accuracy(by_length: bool, figures: Array, targets: Array) -> float:
    """Return the share of questions whose likeliest answer is right; of equal ones the first.

    Args:
        by_length: Whether likelihoods are divided by the answer's tokens.
        figures: Figures [N, 3], as of `token_figures`.
        targets: Targets [N, T + 2], as of `multiple_choice`.
    """
    asked = targets[:, -2] != NO_QUESTION
    losses, counts, _ = figures[asked].astype(np.float64).T
    questions, is_right = targets[asked, -2], targets[asked, -1] != 0
    if not len(questions):
        return float("nan")
    order = np.lexsort((losses / np.maximum(counts, 1) if by_length else losses, questions))
    _, first = np.unique(questions[order], return_index=True)
    return float(is_right[order[first]].mean())


def with_own_questions(scoring: Scoring, targets: dict[str, Array]) -> dict[str, Array]:
    """Return targets of several sets, in which no question has the number of another set's.

    Args:
        scoring: The scoring; the targets of another one than `multiple_choice` stay.
        targets: Targets [N, T + 2] by set, as of `multiple_choice`.
    """
    if scoring.losses is not answer_losses:
        return targets
    numbered: dict[str, Array] = {}
    start = 0
    for name, given in targets.items():
        y = numbered[name] = given.copy()
        asked = y[:, -2] != NO_QUESTION
        y[asked, -2] += start - y[asked, -2].min(initial=0)
        start = max(start, 1 + int(y[asked, -2].max(initial=-1)))
    return numbered


OF_TOKENS = ((token_losses, 0), (answer_losses, 2))
"""Losses of tokens, and the number of columns of targets that are no tokens."""
CHANGE_NOTHING = (cross_entropies, token_losses, answer_losses)
"""Losses that are known not to change their arguments."""


def squared_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of each sample [B], the mean over the values of a target."""
    return (outputs - targets.reshape(outputs.shape)).square().flatten(1).mean(1)


def mean_absolute_error(predicted: Array, targets: Array) -> float:
    """Return the mean of the absolute errors of predictions [N, ...] of targets [N, ...]."""
    return float(np.abs(_errors(predicted, targets)).mean())


def r2(predicted: Array, targets: Array) -> float:
    """Return 1 less the squared errors over the squared deviations from the mean, of all values.

    It is 0 where all targets are equal, as nothing can then be explained.
    """
    flat = targets.reshape(len(targets), -1).astype(np.float64)
    spread = np.square(flat - flat.mean(axis=0)).sum()
    return float(1 - np.square(_errors(predicted, targets)).sum() / spread) if spread else 0.0


def _errors(predicted: Array, targets: Array) -> Floats:
    size = len(targets)
    errors: Floats = predicted.reshape(size, -1).astype(np.float64) - targets.reshape(size, -1)
    return errors


REGRESSION = Scoring(
    squared_errors,
    {"mae": mean_absolute_error, "r2": r2},
    columns=(Column("mae", "smaller", title="MAE"), Column("r2", "larger", title="R2")),
)


def standardised(scoring: Scoring, mean: float, deviation: float) -> Scoring:
    """Return the scoring of a regression with outputs in standard units, (y - mean) / deviation.

    Predictions, and so metrics, are in the targets' own unit; the loss is in standard units.
    """
    return replace(
        scoring,
        losses=partial(_standardised_losses, scoring.losses, mean, deviation),
        predict=in_own_unit((mean, deviation)),
    )


def unit_of(scoring: Scoring) -> tuple[float, float] | None:
    """Return mean and deviation of a scoring that `standardised` made; None of others."""
    predict = scoring.predict
    if isinstance(predict, partial) and predict.func is _in_own_unit:
        mean, deviation = predict.args
        return mean, deviation
    return None


def in_own_unit(unit: tuple[float, float]) -> Callable[[Tensor], Tensor]:
    """Return the function that turns outputs in standard units into predictions."""
    return partial(_in_own_unit, *unit)


def _standardised_losses(
    losses: Callable[[Tensor, Tensor], Tensor],
    mean: float,
    deviation: float,
    outputs: Tensor,
    targets: Tensor,
) -> Tensor:
    return losses(outputs, (targets - mean) / deviation)


def _in_own_unit(mean: float, deviation: float, outputs: Tensor) -> Tensor:
    return outputs * deviation + mean
