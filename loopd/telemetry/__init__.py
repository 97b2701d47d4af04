"""Events to numbers for Prometheus, and log lines."""

from loopd.telemetry.logs import configure as configure_logs
from loopd.telemetry.loop_lag import LoopLag
from loopd.telemetry.metrics import CONTENT_TYPE, Gauges, Metrics
from loopd.telemetry.standing import Directory

__all__ = ["CONTENT_TYPE", "Directory", "Gauges", "LoopLag", "Metrics", "configure_logs"]
