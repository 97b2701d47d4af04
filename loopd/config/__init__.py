"""The daemon's configuration: a TOML file, `LOOPD_…` variables and flags, checked before anything starts."""

from loopd.config.loading import ConfigRefused, environment_name, known_keys, load
from loopd.config.settings import Config, dotted

__all__ = ["Config", "ConfigRefused", "dotted", "environment_name", "known_keys", "load"]
