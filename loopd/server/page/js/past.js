// What a session's events tell, turn by turn: the data behind the timeline, the chart and the findings.

/** How many events are kept in memory for one session; older ones are read again when they are asked for. */
export const EVENTS_MAX = 6_000;

const RUNGS = { warn: 0, nudge: 1, text_only: 2, close: 3, terminate: 4 };

/**
 * Turns, spans of holds and findings.
 *
 * turns: {n, trigger, outcome, seq, end_seq, at_ms, end_ms, steps, calls, failed, tokens, text, changed, rung, findings}
 * holds: {kind, from, to, until_ms, reason, by} in places of turns (fractions: before that turn)
 */
export function told(events) {
  const turns = [];
  const holds = [];
  const findings = [];
  const standing = new Map();
  let running = null;
  let fingerprint = null;
  let rung = 0;
  const place = () => (running ? turns.length - 0.5 : turns.length);
  for (const event of events) {
    const body = event.b ?? {};
    switch (event.k) {
      case "turn.started":
        running = {
          n: body.n, trigger: body.trigger, outcome: "running", seq: event.seq, end_seq: null, at_ms: event.ts, end_ms: null,
          steps: 0, calls: 0, failed: 0, tokens: 0, text: "", changed: false, rung, findings: [], passing: Boolean(body.passing),
        };
        turns.push(running);
        break;
      case "turn.step":
        if (!running) break;
        running.steps += 1;
        running.calls += (body.calls ?? []).length;
        running.failed += (body.calls ?? []).filter((call) => call.ok === false).length;
        running.tokens += (body.usage?.input_tokens ?? 0) + (body.usage?.output_tokens ?? 0);
        running.text = body.text || running.text;
        if (body.state_fingerprint && fingerprint && body.state_fingerprint !== fingerprint) running.changed = true;
        fingerprint = body.state_fingerprint ?? fingerprint;
        break;
      case "agent.reported":
        if (running && body.metric) running.changed = true;
        break;
      case "turn.completed":
      case "turn.interrupted":
        if (!running) break;
        running.outcome = event.k === "turn.completed" ? body.outcome : "interrupted";
        running.end_seq = event.seq;
        running.end_ms = event.ts;
        running = null;
        break;
      case "degeneration.detected": {
        const finding = { ...body, seq: event.seq, ts: event.ts, turn: turns.at(-1)?.n ?? null, place: Math.max(0, turns.length - 1) };
        findings.push(finding);
        if (!body.shadow) {
          rung = RUNGS[body.verdict] ?? rung;
          if (turns.length) {
            turns.at(-1).rung = rung;
            turns.at(-1).findings.push(finding);
          }
        }
        break;
      }
      case "gate.changed": {
        const now = new Map((body.holds ?? []).map((hold) => [hold.kind, hold]));
        for (const [kind, span] of standing) {
          if (now.has(kind)) continue;
          span.to = place();
          standing.delete(kind);
          if (kind === "Degeneration") rung = 0;
        }
        for (const [kind, hold] of now) {
          const known = standing.get(kind);
          if (known) Object.assign(known, { until_ms: hold.until_ms ?? null, reason: hold.reason, by: hold.by });
          else {
            const span = { kind, from: place(), to: null, until_ms: hold.until_ms ?? null, reason: hold.reason, by: hold.by, seq: event.seq };
            standing.set(kind, span);
            holds.push(span);
          }
        }
        break;
      }
      default:
    }
  }
  return { turns, holds, findings };
}
