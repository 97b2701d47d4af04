"""Shell completion, made from the table of verbs by shtab. Session names are asked of the daemon."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopd.cli.run import Run

PREAMBLE = {
    "bash": """\
_loopctl_sessions() {
  compgen -W "$(loopctl ps -q 2>/dev/null)" -- "$1"
}
""",
    "zsh": """\
_loopctl_sessions() {
  local -a names
  names=(${(f)"$(loopctl ps -q 2>/dev/null)"})
  compadd -a names
}
""",
    "fish": """\
function __loopctl_sessions
  loopctl ps -q 2>/dev/null
end
""",
}


def print_script(run: Run) -> None:
    """Print the completion script of a shell."""
    if run.args.program == "loopctl":
        from loopd.cli.operator import whole_parser

        parser = whole_parser()
    else:
        from loopd.cli.daemon import whole_parser as daemon_parser

        parser = daemon_parser()
    import shtab

    script = shtab.complete(parser, shell=run.args.shell, preamble=PREAMBLE.get(run.args.shell, ""))
    run.console.line(script.rstrip("\n"))
