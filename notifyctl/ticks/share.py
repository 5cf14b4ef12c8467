"""Who begins next where a transport holds fewer exchanges than its lanes would start.

An exchange that has begun and waits for a session uses up its own deadline, and one lane could hold every session of a
transport that others need too. So no more are begun than it holds, over all its lanes, the one with the fewest first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from notifyctl.ticks.lane import LaneRun
from notifyctl.ticks.prepare import Prepared
from notifyctl.transports.base import Transport


def taken(
    going: Collection[LaneRun], lanes: Collection[LaneRun], transports: Mapping[str, Transport]
) -> tuple[list[Prepared], bool]:
    """What the lanes `going` take of their ready rows, and whether a transport held back what could have gone.

    `lanes`: all of the run, whose exchanges under way count.
    """
    found: list[Prepared] = []
    cramped = False
    for name in dict.fromkeys(lane.transport for lane in going):
        sharing = sorted((lane for lane in going if lane.transport == name), key=lambda lane: lane.senders.busy)
        capacity = transports[name].capacity()
        if capacity is None:
            found += [prepared for lane in sharing for prepared in lane.take_ready(lane.free)]
            continue
        room = capacity - sum(lane.senders.busy for lane in lanes if lane.transport == name)
        most = transports[name].capabilities.max_batch
        for position, lane in enumerate(sharing):
            part = lane.take_ready(min(lane.free, max(0, math.ceil(room / (len(sharing) - position)))))
            room -= math.ceil(len(part) / most)
            found += part
            cramped |= bool(lane.ready) and len(part) < lane.free
    return found, cramped
