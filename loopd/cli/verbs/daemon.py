"""Verbs about the daemon as a whole."""

from __future__ import annotations

from loopd.cli import arguments as arg
from loopd.cli import signatures as sign
from loopd.cli.verbs.verb import Verb

VERBS: dict[str, Verb] = {
    "freeze": Verb(
        "no session admits work until unfreeze",
        "fleet:freeze",
        sign.freeze,
        "loopctl freeze --reason 'provider outage'",
    ),
    "unfreeze": Verb("end a freeze", "fleet:unfreeze", arg.nothing, "loopctl unfreeze"),
    "drain": Verb(
        "let turns finish, then stop the daemon",
        "fleet:drain",
        sign.drain,
        "loopctl drain --budget 2m --wait",
    ),
    "stop": Verb("stop the daemon at once and in order", "fleet:stop", sign.stop, "loopctl stop --wait"),
    "completion": Verb(
        "print shell completion",
        "completion:print_script",
        sign.completion,
        "loopctl completion bash > ~/.local/share/bash-completion/completions/loopctl",
        "loopctl completion zsh > ~/.zfunc/_loopctl    # a folder of $fpath, before compinit",
        "loopctl completion fish > ~/.config/fish/completions/loopctl.fish",
        "loopctl completion bash --program loopd > ~/.local/share/bash-completion/completions/loopd",
    ),
}
