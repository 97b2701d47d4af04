"""The command: which story, where, and how it ended."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from loopd.client import CallFailed
from loopd.demo import incident, live_model
from loopd.demo.stage import Stage, StoryFailed

EPILOG = """examples:
  loopd demo                                   the incident, in under 30 s
  loopd demo --keep /tmp/demo                  keep the journal to look at afterwards
  loopd demo --base-url http://127.0.0.1:8080/v1 --model NAME
                                               the same on a real model, whatever it answers
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="loopd demo",
        description="Show on a real daemon in a temporary folder how a degenerating agent is caught.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--keep", metavar="DIR", type=Path, help="use this empty folder and leave it there")
    parser.add_argument("--base-url", metavar="URL", help="OpenAI-compatible endpoint of a real model")
    parser.add_argument("--model", metavar="NAME", default="default", help="model at that endpoint")
    parser.add_argument("--api-key-env", metavar="VAR", help="environment variable with the key")
    parser.add_argument("--temperature", metavar="T", type=float, default=0.2, help="default 0.2")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Run the demonstration; 0 if everything it promises happened, else 1 (2 for usage)."""
    args = _parser().parse_args(words)
    colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    if args.keep is not None and args.keep.exists() and any(args.keep.iterdir()):
        sys.stderr.write(f"loopd demo: folder {str(args.keep)!r} is not empty; expected an empty one\n")
        return 2
    folder = args.keep or Path(tempfile.mkdtemp(prefix="loopd-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    keep = args.keep is not None
    try:
        with Stage(folder, colours=colours, limit_s=15.0 if args.base_url is None else 600.0) as stage:
            if args.base_url is None:
                incident.play(stage)
            else:
                live_model.play(
                    stage,
                    base_url=args.base_url,
                    model=args.model,
                    api_key_env=args.api_key_env,
                    temperature_milli=round(args.temperature * 1_000),
                )
            stage.say()
            stage.say(f"All of it happened, in {stage.elapsed_s():.1f} s.", "good")
    except (StoryFailed, CallFailed) as failure:
        keep = True
        sys.stderr.write(f"loopd demo: {failure}\n")
        sys.stderr.write(f"loopd demo: journal and log are kept in {folder}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("loopd demo: stopped\n")
        return 130
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return 0
