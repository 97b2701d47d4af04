"""The head of the page: its policy, which forbids to load or run anything, and its looks, dark and light."""

HEAD = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>loopd inspect</title>
<style>
:root {
  --paper: #fbfaf7; --card: #fff; --ink: #1d2126; --faint: #667080; --line: #e3e1da;
  --call: #8fb3d9; --fail: #d9694f; --text: #c4b5dd; --human: #1f7a4d; --turn: #98a2ae;
  --soft: #d99a1b; --hard: #c22f2f; --rung: #3b4a5e; --tokens: #b9c4cf; --good: #2d7d4f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171b; --card: #1b1f25; --ink: #e4e7eb; --faint: #8e99a7; --line: #2c323a;
    --call: #47698f; --fail: #c9583f; --text: #6d5f8c; --human: #4cc38a; --turn: #5c6673;
    --soft: #e5b04a; --hard: #f06a5d; --rung: #b8c4d3; --tokens: #3f4954; --good: #58c08a;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 14px/1.5 system-ui, sans-serif; }
header, main { max-width: 1240px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 32px; }
h1 { font-size: 24px; margin: 0; }
header p, .facts, .note { color: var(--faint); margin: 4px 0 0; }
h2 { font-size: 16px; margin: 0; overflow-wrap: anywhere; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 16px 20px; margin: 16px 0; }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; margin: 20px 0; }
.tiles div { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 16px; }
dt { color: var(--faint); font-size: 12px; }
dd { margin: 0; font-size: 20px; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
section > .scroll { margin-top: 14px; }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; color: var(--faint); font-weight: 500; font-size: 12px; }
th, td { padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td { overflow-wrap: anywhere; }
td:first-child { min-width: 4em; }
.n { font-variant-numeric: tabular-nums; white-space: nowrap; }
.findings td:nth-child(-n+5) { white-space: nowrap; }
td ul { margin: 0; padding: 0; list-style: none; font: 12px/1.5 ui-monospace, monospace; }
details { margin-top: 12px; }
summary { cursor: pointer; color: var(--faint); }
.task { margin: 6px 0 0; max-width: 90ch; overflow-wrap: anywhere; }
a { color: inherit; text-decoration-color: var(--faint); text-underline-offset: 3px; }
.pill { font-size: 12px; font-weight: 500; padding: 1px 9px; border-radius: 10px; border: 1px solid currentcolor; white-space: nowrap; }
.pill.ok { color: var(--good); } .pill.nudge, .pill.text_only { color: var(--soft); }
.pill.close, .pill.terminate { color: var(--hard); }
.dot { display: inline-block; width: 9px; height: 9px; border-radius: 50%; margin-right: 6px; }
.dot.soft { background: var(--soft); } .dot.hard { background: var(--hard); }
.legend { display: flex; flex-wrap: wrap; gap: 6px 18px; padding: 0; margin: 20px 0 0; list-style: none; color: var(--faint); font-size: 12px; }
.legend svg { margin-right: 6px; vertical-align: -1px; }
svg .call { fill: var(--call); } svg .fail { fill: var(--fail); } svg .text { fill: var(--text); }
svg .human { fill: var(--human); } svg .turn { fill: var(--turn); }
svg .soft { fill: var(--soft); } svg .hard { fill: var(--hard); }
svg .grid { stroke: var(--line); fill: none; }
svg .rung { stroke: var(--rung); stroke-width: 2; fill: none; }
svg .tokens { fill: var(--tokens); }
svg .label, svg .axis { fill: var(--faint); font: 11px system-ui, sans-serif; }
svg .axis { text-anchor: middle; }
@media (max-width: 640px) {
  header, main { padding: 0 12px; }
  header { padding-top: 16px; }
  section { padding: 12px; }
  .findings, .findings tbody, .findings tr { display: block; }
  .findings thead { display: none; }
  .findings tr { border-bottom: 1px solid var(--line); padding: 6px 0; }
  .findings td { display: inline-block; border: 0; padding: 0 12px 0 0; min-width: 0; }
  .findings td:last-child { display: block; padding: 4px 0 0; }
}
</style></head><body>
"""
