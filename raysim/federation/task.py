"""Tasks: federations of a user's own arrays and module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import nn
from torch.utils.data import DataLoader, Dataset

from raysim.api.components import cause
from raysim.api.own_loop import TASK_LOOP, Evaluate, Loop, checked_function
from raysim.api.scoring import CLASSIFICATION, Scoring, with_own_questions
from raysim.errors import DataError, RaysimError, visible
from raysim.federation.federation import CLIENT_TESTS, Federation, LocalTest
from raysim.federation.input_pipeline import InputPipeline
from raysim.federation.named_columns import ColumnOrder
from raysim.federation.samples import read_pair
from raysim.federation.sequences import attach_mask, padded
from raysim.federation.several_inputs import SeveralInputs, packed
from raysim.numbers.arrays import Array, Integers
from raysim.samples.client_indices import ListedIndices
from raysim.samples.data import Split, are_names

WORDS = "UO"
"""Kinds of arrays of words, which pandas holds as objects."""
PARTS = {"x": "inputs", "y": "targets"}


def number_words(targets: Mapping[str, Array]) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Number labels in words, the same for all sets of samples.

    Args:
        targets: Labels [N] of each set, by the name of the set in errors.

    Returns:
        Class numbers, and the words in the order of their numbers; empty if labels are numbers.

    Raises:
        DataError: some labels are words and some are numbers.
    """
    worded = [name for name, y in targets.items() if _are_words(name, y)]
    if not worded:
        return dict(targets), ()
    if others := [name for name, y in targets.items() if name not in worded and len(y)]:
        raise DataError(f"{others[0]}: labels are numbers, but {worded[0]} has words")
    words = sorted({str(word) for y in targets.values() for word in y.flat})
    place: Callable[[Any], int] = {word: number for number, word in enumerate(words)}.__getitem__
    numbered = {
        name: np.array([place(str(word)) for word in y.flat], np.int64).reshape(y.shape)
        for name, y in targets.items()
    }
    return numbered, tuple(words)


def _are_words(name: str, y: Array) -> bool:
    """Return whether labels are words.

    Raises:
        DataError: only some labels are words, or one is neither a word nor a number.
    """
    if y.dtype.kind not in WORDS or not y.size:
        return False
    for row, label in enumerate(y.flat):
        if not isinstance(label, str):
            raise DataError(f"{name}, sample {row}: its label {visible(repr(label))} is no word")
    return True


Samples = tuple[Any, Any] | Dataset[Any] | DataLoader[Any]
"""Inputs [N, ...] and targets [N, ...], as `read_pair` takes them."""


Attach = Callable[[nn.Module], nn.Module]
"""Prepares a module for inputs that are packed in one array."""


@dataclass(frozen=True, repr=False)
class Task:
    """A user's own task, in place of a dataset, a partition and a model.

    Targets are class numbers [N] or words, which are numbered in alphabetical order, unless the
    scoring says otherwise. A regression:

        def squared_error(outputs, targets):  # [B, 1], [B] -> [B]
            return (outputs[:, 0] - targets).square()

        def mae(outputs, targets):  # arrays of the whole test set
            return float(abs(outputs[:, 0] - targets).mean())

        columns = [raysim.Column("mae", better="smaller")]
        scoring = raysim.Scoring(squared_error, {"mae": mae}, columns=columns)
        task = raysim.Task(model, clients, test, scoring)

    Floating-point targets [N] or [N, D] and inputs reach model and loss in the type of the model's
    parameters: float64 if all parameters are float64, else float32. The run records `test_loss` and
    `test_mae` instead of `test_accuracy`; it refuses `target_accuracy`, `evaluation.clients` and
    `local.temperature`.

    Attributes:
        model: Function that builds the network, or a module to copy; its weights are the first
            global model.
        clients: Per client, its inputs [n_k, ...] and targets [n_k, ...], as tensors, arrays, lists
            or a DataFrame with a Series; or a torch `Dataset` of such pairs, or a `DataLoader`,
            which is read once. Columns of DataFrames are taken by name, in the first client's
            order. Several inputs, for example padded sequences and their mask, are a mapping or a
            tuple; the module's `forward` takes them by name or in order. If targets are None, the
            inputs are the targets, as for an autoencoder; with several inputs, zeros are.
        test: The test inputs [N, ...] and targets [N, ...] in one of these forms, or None.
        client_tests: Per client, its own test inputs and targets, to evaluate its deployed model;
            None for a client without any. Empty: no client has any.
        scoring: Loss and metrics; by default cross-entropy, accuracy and macro F1.
        class_names: Names of the classes in the order of their numbers, all different, for tables
            and pictures; if targets are words, the names are the words.
        train: Function that trains a `raysim.Client` in place of the engine's steps; None: these.
        evaluate: `evaluate(model, x, y)`: numbers by name, of the global model in evaluation mode
            and the test samples; columns of the evaluated rounds, in addition to the scores.
        sequences: Whether inputs are lists of sequences of unequal length: of tokens [t], which are
            padded with -1, or of values [t, D], padded with 0, for a module `forward(x, mask)`.
            Targets with one whole number for each position are padded with -100, which does not
            count in `LANGUAGE_MODEL`. If targets are None, the next tokens are. A batch's inputs
            are cut to its longest sequence, its targets are not.
    """

    model: Callable[[], nn.Module] | nn.Module
    clients: Sequence[Samples]
    test: Samples | None = None
    scoring: Scoring = CLASSIFICATION
    client_tests: Sequence[Samples | None] = ()
    class_names: Sequence[str] | Array = ()
    train: Loop | None = None
    evaluate: Evaluate | None = None
    sequences: bool = False

    def __post_init__(self) -> None:
        """Check that the clients can be counted and read more than once.

        Raises:
            DataError: `clients` is no sequence.
        """
        clients: Any = self.clients
        if not isinstance(clients, Sequence):
            kind = type(clients).__name__
            raise DataError(f"Task.clients: must be a list of each client's samples; is a {kind}")

    def __repr__(self) -> str:
        """Return model, numbers of clients and tests, and metrics; no samples."""
        model = getattr(self.model, "__name__", type(self.model).__name__)
        tests = sum(test is not None for test in self.client_tests)
        parts = [f"model={model}", f"clients={len(self.clients)}"]
        parts += ["test=None" if self.test is None else "test=..."]
        parts += [f"client_tests={tests}", f"metrics={[*self.scoring.metrics]}"]
        return f"Task({', '.join(parts)})"


def _built(model: Callable[[], Any] | nn.Module, attach: Attach | None) -> nn.Module:
    """Return a task's network: call the user's function, or copy the module.

    Raises:
        DataError: the user's function fails, or does not return a module.
    """
    try:
        built = deepcopy(model) if isinstance(model, nn.Module) else model()
    except (RaysimError, MemoryError, OSError):
        raise
    except Exception as error:  # a user's function may raise anything
        raise DataError(f"Task.model: cannot be built: {cause(error)}") from error
    if not isinstance(built, nn.Module):
        shown = visible(repr(built))
        raise DataError(f"Task.model: must build a torch.nn.Module; it built {shown}")
    return attach(built) if attach else built


def _attach(task: Task, several: SeveralInputs | None, x: Array) -> Attach | None:
    """Return what gives a task's network its inputs apart; None if it takes one array."""
    if several:
        return several.attach
    return attach_mask if task.sequences and x.ndim == 3 else None


def from_task(task: Task, note: Callable[[str], None] = lambda text: None) -> Federation:
    """Return the federation of a user's own task.

    Args:
        task: The task.
        note: Called with a line if labels in words are numbered.

    Raises:
        DataError: clients hold no samples, or inputs and targets do not match.
    """
    if not task.clients:
        raise DataError("Task.clients: must hold at least one client")
    if not isinstance(task.model, nn.Module) and not callable(task.model):
        raise DataError(
            f"Task.model: must be a module or a function that builds one; is {task.model!r}"
        )
    names = [f"client {number}" for number in range(len(task.clients))]
    own_tests = _names_of_tests(task.client_tests, len(names))
    columns = ColumnOrder()
    sets_given = _sets_given(task, names, own_tests).items()
    pairs = {name: read_pair(name, pair, columns) for name, pair in sets_given}
    several, arrays = packed({name: x for name, (x, _) in pairs.items()})
    inputs, labels = _alike(arrays), tuple[str, ...]()
    targets = _targets(task.scoring, {n: y for n, (_, y) in pairs.items()}, inputs, several)
    if task.scoring.classifies:
        targets, labels = number_words(targets)
    class_names = _class_names(task, labels)
    if labels:
        numbers = ", ".join(f"{number} is {word}" for number, word in enumerate(labels))
        note(visible(f"labels are numbered: {numbers}"))
    read = _read_labels if task.scoring.classifies else _read_targets
    targets = with_own_questions(task.scoring, {name: read(name, y) for name, y in targets.items()})
    sets = {name: Split(inputs[name], y) for name, y in targets.items()}
    clients, test = [sets[name] for name in names], sets.get("Task.test")
    _check_alike(clients, test)
    sizes = [len(client) for client in clients]
    train = Split(np.concatenate([c.x for c in clients]), np.concatenate([c.y for c in clients]))
    return Federation(
        train,
        Split(train.x[:0], train.y[:0]) if test is None else test,
        ListedIndices.of(np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])),
        InputPipeline(),
        partial(_built, task.model, _attach(task, several, clients[0].x)),
        scoring=task.scoring,
        local_test=_local_test(own_tests, sets, train, len(clients)),
        class_names=class_names,
        in_words=bool(labels),
        sequences=task.sequences,
        **_functions(task),
    )


def _sets_given(
    task: Task, names: Sequence[str], own_tests: Mapping[int, str]
) -> Mapping[str, Any]:
    """Return the samples of each client, of the test set and of clients' own tests, by name.

    Args:
        task: The task.
        names: The clients' names.
        own_tests: Names of clients' test samples, by client.

    Raises:
        DataError: sequences are no sequences.
    """
    given: dict[str, Any] = dict(zip(names, task.clients, strict=True))
    given |= {} if task.test is None else {"Task.test": task.test}
    given |= {name: task.client_tests[number] for number, name in own_tests.items()}
    return padded(given, task.scoring) if task.sequences else given


def _functions(task: Task) -> dict[str, Any]:
    """Return a task's own training loop and evaluation, for the federation.

    Raises:
        DataError: there is no test set for the evaluation.
    """
    train, evaluate = task.train, task.evaluate
    if evaluate and task.test is None:
        raise DataError("Task.evaluate: needs Task.test, the samples that it is given")
    return {
        "loop": train and checked_function(train, TASK_LOOP, "client"),
        "evaluate": evaluate and checked_function(evaluate, "Task.evaluate", "model", "x", "y"),
    }


def _class_names(task: Task, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a task's classes; `words` are the words among its targets.

    Raises:
        DataError: the given names are not different texts, or differ from the words.
    """
    if not are_names(task.class_names):
        told = visible(" ".join(repr(task.class_names).split()))
        raise DataError(f"Task.class_names: must be a list of different texts; is {told}")
    names = tuple(map(str, task.class_names))  # of a NumPy array, np.str_
    if names and words and names != words:
        told = visible(", ".join(words))
        raise DataError(f"Task.class_names: targets are words, which are the names: {told}")
    return words or names


def _alike(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return inputs in one type: sets of whole numbers take the type of the others."""
    kinds = {x.dtype.kind for x in inputs.values()}
    if len(kinds) == 1 or not kinds & {*"fc"}:
        return dict(inputs)
    common = np.result_type(*(x.dtype for x in inputs.values()))
    return {name: x.astype(common, copy=False) for name, x in inputs.items()}


def _targets(
    scoring: Scoring,
    by_name: Mapping[str, Array | None],
    inputs: Mapping[str, Array],
    several: SeveralInputs | None,
) -> dict[str, Array]:
    """Return targets of each set; for None the inputs, or zeros where these are several.

    Raises:
        DataError: the scoring needs targets, or some sets have none.
    """
    targets = {name: y for name, y in by_name.items() if y is not None}
    if len(targets) == len(by_name):
        return targets
    name = next(name for name, y in by_name.items() if y is None)
    if scoring.classifies or targets:
        why = f"{next(iter(targets))} has targets" if targets else "give Task.scoring"
        raise DataError(f"{name}: targets are None; {why}")
    return {n: np.zeros(len(x)) if several else x for n, x in inputs.items()}


def _check_alike(clients: Sequence[Split], test: Split | None) -> None:
    """Check that samples of all clients have one shape, and targets of all sets one dtype too.

    Raises:
        DataError: shapes or dtypes differ, or the test set is empty.
    """
    if len({client.x.shape[1:] for client in clients}) > 1:
        raise DataError("Task.clients: inputs of all clients must have the same shape")
    sets = [*clients, *([] if test is None else [test])]
    if len({(samples.y.shape[1:], samples.y.dtype) for samples in sets}) > 1:
        raise DataError("Task.clients, Task.test: all targets must have one shape and dtype")
    if test is not None and not len(test):
        raise DataError("Task.test: must hold at least one sample; None evaluates nothing")


def _read_labels(name: str, y: Array) -> Integers:
    """Return class numbers [N] as integers."""
    labels = y.astype(np.int64) if y.dtype.kind in "fiub" else np.zeros(0, np.int64)
    if y.ndim != 1 or labels.shape != y.shape or (labels != y).any():
        raise DataError(
            f"{name}: targets {y.dtype}{[*y.shape]} are not class numbers [N]; for others give"
            " Task.scoring"
        )
    if len(y) and y.min() < 0:
        raise DataError(f"{name}: labels must be class numbers from 0 up; there is {y.min()}")
    return labels


def _read_targets(name: str, y: Array) -> Array:
    """Return floating-point targets [N, ...] in float64, integers in int64."""
    if y.dtype.kind not in "fiub":
        raise DataError(f"{name}: targets must be numbers, not {y.dtype}")
    return y.astype(np.float64 if y.dtype.kind == "f" else np.int64)


def _names_of_tests(client_tests: Sequence[Any] | None, clients: int) -> dict[int, str]:
    """Return the names in errors of the clients' test samples, by client with test samples.

    Args:
        client_tests: Per client, samples or None; empty where no client has any.
        clients: Number of clients K.

    Raises:
        DataError: there is not one entry per client.
    """
    if client_tests is None:
        return {}
    if not isinstance(client_tests, list | tuple):
        raise DataError(
            f"{CLIENT_TESTS}: must be a list of one entry a client; is {client_tests!r:.80}"
        )
    if len(client_tests) not in (0, clients):
        raise DataError(
            f"{CLIENT_TESTS}: {len(client_tests)} entries for {clients} clients; give one a client,"
            " None where it has no test samples"
        )
    with_tests = (number for number, pair in enumerate(client_tests) if pair is not None)
    return {number: f"{CLIENT_TESTS}, client {number}" for number in with_tests}


def _local_test(
    names: Mapping[int, str], sets: Mapping[str, Split], train: Split, clients: int
) -> LocalTest | None:
    """Return the clients' own test samples; None if none are given.

    Args:
        names: Names of the sets of test samples, by client.
        sets: Samples by name.
        train: The training samples of all clients; test samples must have their shapes and dtypes.
        clients: Number of clients K.

    Raises:
        DataError: shapes or dtypes differ from the training samples', or all sets are empty.
    """
    if not names:
        return None
    filled = {name: sets[name] for name in names.values() if len(sets[name])}
    if not filled:
        raise DataError(
            f"{CLIENT_TESTS}: no client has a sample; leave it out, or give one client some"
        )
    for name, samples in filled.items():
        for part, title in PARTS.items():
            array, like = getattr(samples, part), getattr(train, part)
            if (array.shape[1:], array.dtype.kind) != (like.shape[1:], like.dtype.kind):
                raise DataError(
                    f"{name}: {title} {array.dtype}{[*array.shape[1:]]} a sample; must be"
                    f" {like.dtype}{[*like.shape[1:]]}, as in Task.clients"
                )
    x, y = (
        np.concatenate([getattr(own_samples, part) for own_samples in filled.values()])
        for part in PARTS
    )
    sizes = [len(sets[names[number]]) if number in names else 0 for number in range(clients)]
    rows = np.split(np.arange(len(y)), np.cumsum(sizes)[:-1])
    return LocalTest(ListedIndices.of_some(rows), Split(x, y), "local")
