"""Bytes of asynchronous rounds: received in the round of the start, sent in that of the end.

A client that drops out has received and sent as much as it had time for.
"""

from __future__ import annotations

from raysim.driver.asynchronous.arrivals import PlannedRound
from raysim.driver.asynchronous.times import DeviceTimes
from raysim.driver.uploads.dispatch import Dispatch
from raysim.execution.partial_sum import PartialSum


def sent_late(planned: PlannedRound) -> int:
    """Return the number of updates that arrived in a round too stale to count."""
    return sum(not flight.lost for flight in planned.dropped)


def bytes_of(
    dispatch: Dispatch,
    planned: PlannedRound,
    total: PartialSum,
    times: DeviceTimes | None,
) -> tuple[int, int]:
    """Return the bytes that all clients sent and received in a round.

    Args:
        dispatch: Its pass, over the clients that start in it.
        planned: The round.
        total: The sum of its arrivals.
        times: The clients' times; without a clock no client is lost.
    """
    sent, received = 0, 0
    if times:
        sent, received = times.moved(planned.dropped)[0], times.moved(planned.started)[1]
    # A dropped update is not computed, but its device would have sent it.
    sent += total.bytes_up + sent_late(planned) * total.bytes_up // max(len(total.clients), 1)
    whole = [flight.client for flight in planned.started if not flight.lost]
    return sent, received + int(dispatch.received_bytes(whole, dispatch.frozen).sum())
