"""Which lanes a tick serves, and what they need to run."""

from __future__ import annotations

from collections.abc import Sequence

from notifyctl.compose import dkim_keys
from notifyctl.compose.attachments import Objects
from notifyctl.compose.dkim import Signer
from notifyctl.compose.templates import Renderer
from notifyctl.config import Config
from notifyctl.errors import ConfigError, UsageError
from notifyctl.model import Channel, Lane
from notifyctl.ticks.dispatch import Dispatch
from notifyctl.ticks.lane import LaneRun
from notifyctl.ticks.prepare import Preparer
from notifyctl.ticks.run import Run
from notifyctl.transports.base import Transport
from notifyctl.transports.registry import open_transport


def chosen(config: Config, names: Sequence[str], channel: Channel | None) -> list[Lane]:
    """The configured lanes that --lane and --channel leave. Raises UsageError for an unknown lane."""
    if not config.lanes:
        raise ConfigError(f"{config.path} configures no lane", hint="add a [lanes.NAME] with channel and transport")
    unknown = sorted(set(names) - set(config.lanes))
    if unknown:
        raise UsageError(f"there is no lane {unknown[0]!r}", hint=f"configured are {', '.join(sorted(config.lanes))}")
    return [
        lane
        for lane in config.lanes.values()
        if (not names or lane.name in names) and (channel is None or lane.channel is channel)
    ]


def dispatch(run: Run, lanes: Sequence[Lane], region: str, *, batch: int | None, concurrency: int | None) -> Dispatch:
    """A dispatch run over these lanes; `batch` and `concurrency` override the configured ones.

    A transport that cannot be opened (a secret or a key is wrong) keeps its own lanes waiting and no other;
    the run's `faults` say why. Raises that ConfigError where no lane is left.
    """
    config = run.config
    opened: dict[str, tuple[Transport, Signer | None]] = {}
    faults: dict[str, ConfigError] = {}
    for name in dict.fromkeys(lane.transport for lane in lanes):
        try:
            settings = config.transports[name]
            opened[name] = open_transport(settings, run.keys.return_path), dkim_keys.signer(settings)
        except ConfigError as error:
            faults[name] = error
    lanes = [lane for lane in lanes if lane.transport not in faults]
    if faults and not lanes:
        raise next(iter(faults.values()))
    renderer, objects = Renderer(config.default_locale), Objects(config.objects_root)
    lane_runs = []
    for lane in lanes:
        lane = _with(lane, batch, concurrency)
        transport, signer = opened[lane.transport]
        preparer = Preparer(config, lane, transport, renderer, run.keys, objects, signer)
        lane_runs.append(LaneRun(lane, region, preparer, run.wake, inline=signer is None))
    transports = {name: transport for name, (transport, _) in opened.items()}
    return Dispatch(run, lane_runs, transports, faults=list(faults.values()))


def _with(lane: Lane, batch: int | None, concurrency: int | None) -> Lane:
    from dataclasses import replace

    return replace(lane, batch=batch or lane.batch, concurrency=concurrency or lane.concurrency)
