"""Output of a run: plain lines in a pipe, a live view in a terminal."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from raysim.cli import live_view
from raysim.cli.live_view import LiveView, PlainOutput, make_listener
from raysim.driver.listeners import progress
from raysim.driver.listeners.listener import Started
from raysim.driver.listeners.progress import closing_lines
from raysim.storage.column_names import OF_SCORES

SUMMARY = {
    "score": "test_accuracy",
    "final_score": 0.9712,
    "best_score": 0.9734,
    "rounds_to_target": 46.25,
    "rounds": 50,
    "seconds": 12.34,
    "seconds_per_round": 0.2345,
    "bytes_up": 1_500_000,
    "bytes_down": 2_500_000,
}


def started(**changes):
    values = {
        "path": Path("runs/[red]mine"),
        "method": "fedavg",
        "round_number": 0,
        "rounds": 3,
        "cohort": 10,
        "clients": 100,
        "target": 0.97,
        "score": "test_accuracy",
        "columns": OF_SCORES,
    }
    return Started(**(values | changes))


def row(number, **changes):
    values = {
        "round": number,
        "test_accuracy": 0.5,
        "test_loss": 1.23456,
        "train_loss": 0.98765,
        "clients": 10,
        "seconds": 4.0,
        "bytes_up": 1_200_000,
        "bytes_down": 900_000,
    }
    return values | changes


@pytest.fixture
def said():
    return StringIO()


@pytest.fixture
def lines(said):
    with make_listener(Console(file=said, width=40), {"rounds_to_target": 47}) as listener:
        yield listener


def plain(stream):
    """Return what was written without the codes of colours and cursor."""
    return Text.from_ansi(re.sub(r"\x1b\[\??[0-9;]*[A-HJKSTfhlsu]", "", stream.getvalue())).plain


def test_without_a_terminal_lines_are_plain(lines):
    assert type(lines) is PlainOutput


def test_lines_of_a_run(lines, said):
    lines.started(started())
    lines.progress(5, 10)
    lines.round_done(row(1, test_accuracy=None, test_loss=None))
    lines.round_done(row(2, train_loss=None, clients=0))
    lines.round_done(row(3))
    lines.note("client 7 was dropped")
    lines.finished(SUMMARY)
    text = re.sub(r"left \d+:\d\d", "left ?", said.getvalue())
    assert text.splitlines() == [
        "fedavg: 100 clients, 10 a round, 3 rounds, until 97.0%; runs/[red]mine",
        "round 1  accuracy -  loss -  train loss 0.9877  sent 2.1 MB  left ?  clients/s 2.5",
        "round 2  accuracy 50.00%  loss 1.2346  train loss -  sent 2.1 MB  left ?  clients/s 0.0",
        "round 3  accuracy 50.00%  loss 1.2346  train loss 0.9877  sent 2.1 MB  left ?"
        "  clients/s 2.5",
        "note: client 7 was dropped",
        "accuracy 97.12% (best 97.34%) after 50 rounds, 12.3 s, median 0.234 s a round",
        "rounds to 97.0%: 46.2 (published 47)",
        "sent up 1.5 MB, down 2.5 MB",
        "everything is in runs/[red]mine",
    ]
    assert "\x1b" not in said.getvalue()


def test_a_resumed_run_says_from_where(lines, said):
    lines.started(started(round_number=2, target=None))
    expected = "fedavg: 100 clients, 10 a round, 3 rounds, from round 3; runs/[red]mine\n"
    assert said.getvalue() == expected


def test_time_left(lines, monkeypatch):
    """Two rounds took 150 s, so the three that are left take 225 s."""
    moments = iter([1000.0, 1150.0, 1150.0])
    monkeypatch.setattr(progress, "perf_counter", lambda: next(moments))
    lines.started(started(round_number=1, rounds=6))
    assert lines.values(row(3))["left"] == "3:45"
    assert lines.values(row(6))["left"] == "0:00"


def test_preparing_is_said_now_and_then_and_at_the_end(lines, said, monkeypatch):
    moment = [100.0]
    monkeypatch.setattr(live_view, "perf_counter", lambda: moment[0])
    for seconds, done in [(0, 0), (1, 10), (4, 40), (2, 60), (1, 100)]:
        moment[0] += seconds
        lines.preparing("fetch mnist", done, 100)
    assert said.getvalue().splitlines() == [
        "fetch mnist: 0%",
        "fetch mnist: 60%",
        "fetch mnist: 100%",
    ]


def test_closing_lines_with_a_target_that_was_missed():
    missed = SUMMARY | {"rounds_to_target": None}
    found = closing_lines(missed, started(), {"rounds_to_target": 134.5})
    assert found[1] == "rounds to 97.0%: not reached (published 134.5)"


@pytest.mark.parametrize(("best", "said"), [(31, "31"), (None, "none")])
def test_closing_lines_of_a_run_that_patience_has_ended(best, said):
    summary = SUMMARY | {"stopped_by": "patience", "best_round": best}
    lines = closing_lines(summary, started(target=None), {})
    assert lines[1] == f"stopped by patience: the best round is {said}"


def test_closing_lines_of_one_round():
    assert " after 1 round, " in closing_lines(SUMMARY | {"rounds": 1}, started(), {})[0]


def test_closing_lines_of_a_backdoor():
    found = closing_lines(SUMMARY | {"final_attack_success_rate": 0.125}, started(), {})
    assert "attack success 12.50%" in found


def test_closing_lines_without_published_values():
    assert closing_lines(SUMMARY, started(), {})[1] == "rounds to 97.0%: 46.2"


SCORES = {
    "holdout_accuracy": (0.25, "held-out accuracy", "25.00%"),
    "personal_holdout_accuracy": (0.25, "own held-out accuracy", "25.00%"),
    "local_test_loss": (1.5, "local test loss", "1.5000"),
    "personal_local_test_loss": (0.5, "own local test loss", "0.5000"),
    "train_set_accuracy": (0.125, "training accuracy", "12.50%"),
    "test_loss": (2.0, "loss", "2.0000"),
}


@pytest.mark.parametrize("score", SCORES)
def test_the_main_score_is_shown(lines, score):
    value, words, shown = SCORES[score]
    lines.started(started(score=score, target=None))
    found = lines.values(row(1) | {score: value})
    assert found[words] == shown
    assert f"{words.rpartition(' ')[0]} loss".strip() in found
    summary = SUMMARY | {"score": score, "final_score": value, "best_score": value}
    best = f" (best {shown})" if "accuracy" in score else ""
    assert closing_lines(summary, started(), {})[0].startswith(f"{words} {shown}{best} after")


def test_without_an_evaluation_the_training_loss_is_shown(lines):
    lines.started(started(score=None, target=None))
    found = lines.values(row(1))
    assert [name for name in found if "loss" in name or "accuracy" in name] == ["train loss"]


def test_closing_lines_without_target_or_evaluation_or_run():
    no_target = closing_lines(SUMMARY, started(target=None), {"rounds_to_target": 47})
    assert [line.split()[0] for line in no_target] == ["accuracy", "sent", "everything"]
    unknown = SUMMARY | {"score": None, "final_score": None, "best_score": None}
    assert closing_lines(unknown, None, {}) == ["sent up 1.5 MB, down 2.5 MB"]


@pytest.fixture
def console(said):
    return Console(file=said, force_terminal=True, width=100, height=30)


def frame(view, console):
    """Return what the view would draw now; the view is not started, so no thread draws too."""
    with console.capture() as drawing:
        console.print(view.live.get_renderable())
    return Text.from_ansi(drawing.get()).plain


def test_live_view_shows_progress_below_the_rounds(console, said):
    view = LiveView(console, {})
    view.started(started())
    assert "round 1/3" in frame(view, console)
    view.progress(4, 10)
    assert "4/10" in frame(view, console)
    view.round_done(row(1))
    drawn = frame(view, console)
    assert "round 2/3" in drawn and "4/10" not in drawn
    view.round_done(row(2))
    view.round_done(row(3, test_accuracy=None, test_loss=None))
    assert "round 4" not in frame(view, console)
    header, *rows = (line.split() for line in plain(said).splitlines()[1:])
    assert header[:3] == ["round", "accuracy", "loss"]
    assert [each[:3] for each in rows] == [
        ["1", "50.00%", "1.2346"],
        ["2", "50.00%", "1.2346"],
        ["3", "-", "-"],
    ]


def test_live_view_is_one_line_high_and_repeats_the_names_once_in_a_window(said):
    console = Console(file=said, force_terminal=True, width=100, height=6)
    view = LiveView(console, {})
    view.started(started(rounds=9))
    for number in range(1, 10):
        view.round_done(row(number))
    assert len(frame(view, console).splitlines()) == 1
    firsts = [line.split()[0] for line in plain(said).splitlines()[1:]]
    assert firsts == ["round", *"1234", "round", *"5678", "round", "9"]


VIRTUAL = {"virtual_seconds": 3725.4, "virtual_joules": 12_345.6, "lost_clients": 3}


def test_columns_that_do_not_fit_in_the_window_are_left_out(said):
    view = LiveView(Console(file=said, force_terminal=True, width=80, height=24), {})
    view.started(started())
    view.round_done(row(1, **VIRTUAL))
    _, header, figures = plain(said).splitlines()
    assert max(map(len, (header, figures))) <= 80
    assert header.endswith("virtual   energy    lost    sent    left")
    assert re.sub(r"  +", " ", figures).startswith(" 1 50.00% 1.2346 0.9877 1.03 h 12.3 kJ 3 2.1")


def test_virtual_time_is_in_lines_and_summary(lines):
    shown = lines.values(row(1, **VIRTUAL | {"virtual_seconds": 1.26}))
    assert [shown[name] for name in ("virtual", "energy", "lost")] == ["1.26 s", "12.3 kJ", "3"]
    assert closing_lines(SUMMARY | VIRTUAL, None, {})[-1] == (
        "virtual time 1.03 h, 12.3 kJ of all clients, 3 clients lost"
    )


@pytest.mark.parametrize(
    ("loss", "shown"),
    [
        *((None, "-"), (0.00004, "0.0000"), (2.345678, "2.3457"), (10.5985, "10.598")),
        *((98.0, "98"), (31307.9, "31308"), (99_999.7, "1.0e+05"), (145687.3, "1.5e+05")),
        *((float("inf"), "inf"), (float("nan"), "nan")),
    ],
)
def test_losses_keep_their_column(lines, loss, shown):
    assert lines.values(row(1, train_loss=loss))["train loss"] == shown


def test_live_view_shows_what_is_prepared(console):
    view = LiveView(console, {})
    view.preparing("fetch mnist", 3, 4)
    drawn = frame(view, console)
    assert "fetch mnist" in drawn and "3/4" in drawn
    view.preparing("fetch mnist", 4, 4)
    assert "fetch mnist" not in (drawn := frame(view, console)) and "starting" in drawn


def test_live_view_draws_in_a_terminal(console, said):
    with make_listener(console, {}) as view:
        assert type(view) is LiveView
        view.started(started())
        view.round_done(row(1))
        view.progress(4, 10)
    text = plain(said)
    assert "50.00%" in text and "round 2/3" in text and "4/10" in text


def test_live_view_says_notes_and_the_end_above_itself(console, said):
    with make_listener(console, {}) as view:
        view.started(started())
        view.note("client [7] was dropped")
        view.round_done(row(1))
        view.finished(SUMMARY)
    text = plain(said)
    assert text.rstrip().endswith("everything is in runs/[red]mine")
    for line in [
        "fedavg: 100 clients, 10 a round, 3 rounds, until 97.0%; runs/[red]mine",
        "note: client [7] was dropped",
        "rounds to 97.0%: 46.2",
        "everything is in runs/[red]mine",
    ]:
        assert line in text


def test_live_view_lets_errors_through_and_gives_the_terminal_back(console, said):
    with pytest.raises(KeyboardInterrupt), make_listener(console, {}) as view:
        raise KeyboardInterrupt
    assert not view.live.is_started
    assert "\x1b[?25h" in said.getvalue()  # the cursor is shown again
