-- Schema 1: the journal, content-addressed blobs, and the projections that are kept with it.
--
-- The journal is an append-only rowid table (a clustered or WITHOUT ROWID layout writes 7 to 31
-- times as much), session ids are small integers, and it has one secondary index: the uniqueness of
-- (sid, ss). It has no foreign key, because that look-up would be paid for each event.
--
-- The runner wraps this file in a transaction and sets user_version.

PRAGMA application_id = 1819242352;  -- 'loop'

CREATE TABLE meta (
    id         INTEGER PRIMARY KEY CHECK (id = 1),
    log_id     TEXT    NOT NULL,
    created_ms INTEGER NOT NULL,
    epoch      INTEGER NOT NULL,
    boots      INTEGER NOT NULL,
    frozen     TEXT               -- body of the daemon.frozen event that stands, or NULL
) STRICT;

CREATE TABLE boot (
    n       INTEGER PRIMARY KEY,    -- counts up; journal.boot refers to it
    id      TEXT    NOT NULL,
    version TEXT    NOT NULL,       -- of loopd: a newer one may derive a state differently
    epoch   INTEGER NOT NULL,
    at_ms   INTEGER NOT NULL,
    head    INTEGER NOT NULL        -- last seq before this boot
) STRICT;

CREATE TABLE journal (
    seq       INTEGER PRIMARY KEY,
    sid       INTEGER,            -- session.num, NULL for events of the daemon
    ss        INTEGER NOT NULL,
    epoch     INTEGER NOT NULL,
    boot      INTEGER NOT NULL,
    at_ms     INTEGER NOT NULL,
    kind      TEXT    NOT NULL,
    kv        INTEGER NOT NULL,
    turn      INTEGER,
    cause_seq INTEGER,
    principal TEXT    NOT NULL,
    body      BLOB,               -- NULL once retention deleted it; then body_sha stands for it
    body_sha  BLOB,
    blob      BLOB,
    h         BLOB    NOT NULL,
    sh        BLOB,
    UNIQUE (sid, ss),
    CHECK (body IS NOT NULL OR length(body_sha) = 32),
    CHECK (length(h) = 32),
    CHECK ((sid IS NULL) = (sh IS NULL))
) STRICT;

CREATE TABLE blob (
    id    INTEGER PRIMARY KEY,
    sha   BLOB    NOT NULL UNIQUE CHECK (length(sha) = 32),
    codec TEXT    NOT NULL CHECK (codec IN ('raw', 'zlib')),
    len   INTEGER NOT NULL,       -- bytes before compression
    data  BLOB    NOT NULL
) STRICT;

CREATE TABLE session (
    num             INTEGER PRIMARY KEY,
    sid             TEXT    NOT NULL UNIQUE,
    name            TEXT    NOT NULL,
    status          TEXT    NOT NULL,
    preset          TEXT    NOT NULL,
    goal            TEXT    NOT NULL,
    holds           TEXT    NOT NULL,
    until_ms        INTEGER,
    deadline_ms     INTEGER,
    inbox           INTEGER NOT NULL,
    inbox_oldest_ms INTEGER,
    turns           INTEGER NOT NULL,
    steps           INTEGER NOT NULL,
    tokens          INTEGER NOT NULL,
    tokens_barren   INTEGER NOT NULL,
    repeat_streak   INTEGER NOT NULL,
    barren_streak   INTEGER NOT NULL,
    progress_ms     INTEGER NOT NULL,
    created_ms      INTEGER NOT NULL,
    last_turn_ms    INTEGER NOT NULL,
    running         INTEGER NOT NULL,
    trigger         TEXT    NOT NULL,
    labels          TEXT    NOT NULL,
    ss              INTEGER NOT NULL,
    state           BLOB    NOT NULL  -- the whole state, msgpack
) STRICT;

CREATE UNIQUE INDEX session_live_name ON session (name) WHERE status = 'live';

CREATE TABLE hold (
    sid      INTEGER NOT NULL REFERENCES session (num),
    kind     TEXT    NOT NULL,
    until_ms INTEGER,
    body     BLOB    NOT NULL,
    PRIMARY KEY (sid, kind),
    CONSTRAINT an_automatic_hold_has_a_deadline CHECK (kind = 'UserSuspend' OR until_ms IS NOT NULL)
) STRICT, WITHOUT ROWID;

CREATE TABLE inbox (
    sid    INTEGER NOT NULL REFERENCES session (num),
    ss     INTEGER NOT NULL,
    id     TEXT    NOT NULL,
    source TEXT    NOT NULL,
    at_ms  INTEGER NOT NULL,
    job    TEXT,
    due_ms INTEGER,
    count  INTEGER NOT NULL,
    held   INTEGER NOT NULL,
    PRIMARY KEY (sid, ss)
) STRICT, WITHOUT ROWID;

CREATE TABLE turn (
    id         INTEGER PRIMARY KEY,
    sid        INTEGER NOT NULL,
    n          INTEGER NOT NULL,
    trigger    TEXT    NOT NULL,
    outcome    TEXT    NOT NULL,    -- empty while it runs
    first_seq  INTEGER NOT NULL,
    last_seq   INTEGER NOT NULL,
    first_ss   INTEGER NOT NULL,
    last_ss    INTEGER NOT NULL,
    started_ms INTEGER NOT NULL,
    ended_ms   INTEGER,
    steps      INTEGER NOT NULL,
    tokens     INTEGER NOT NULL,
    manifest   TEXT,
    consumed   TEXT    NOT NULL,    -- JSON array: ss of the accepted envelopes
    UNIQUE (sid, n)
) STRICT;

CREATE TABLE cron (
    sid     INTEGER NOT NULL REFERENCES session (num),
    job     TEXT    NOT NULL,
    next_ms INTEGER,
    paused  INTEGER NOT NULL,
    body    BLOB    NOT NULL,
    PRIMARY KEY (sid, job)
) STRICT, WITHOUT ROWID;

CREATE TABLE cron_occurrence (
    id       INTEGER PRIMARY KEY,
    sid      INTEGER NOT NULL,
    job      TEXT    NOT NULL,
    due_ms   INTEGER NOT NULL,
    manual   INTEGER NOT NULL,
    result   TEXT    NOT NULL,
    envelope TEXT,
    late_ms  INTEGER NOT NULL,
    at_ms    INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    UNIQUE (sid, job, due_ms, manual)
) STRICT;

CREATE TABLE effect (
    rowid_      INTEGER PRIMARY KEY,
    sid         INTEGER NOT NULL,
    id          TEXT    NOT NULL,
    n           INTEGER NOT NULL,
    call        TEXT    NOT NULL,
    tool        TEXT    NOT NULL,
    tool_class  TEXT    NOT NULL,
    args_sha256 TEXT    NOT NULL,
    intent_seq  INTEGER NOT NULL,
    outcome     TEXT    NOT NULL,   -- empty until known
    outcome_seq INTEGER,
    UNIQUE (sid, id)
) STRICT;

CREATE TABLE idempotency (
    id             INTEGER PRIMARY KEY,
    principal      TEXT    NOT NULL,
    key            TEXT    NOT NULL,
    command_sha256 TEXT    NOT NULL,
    result         BLOB    NOT NULL,
    seq            INTEGER NOT NULL,
    at_ms          INTEGER NOT NULL,
    UNIQUE (principal, key)
) STRICT;
