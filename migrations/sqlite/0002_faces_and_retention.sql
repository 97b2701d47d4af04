-- Schema 2: access tokens, consumers, webhooks, anchors, recovery, retention.
--
-- Unreleased: until it is, whoever needs a column edits this file in place and says so in its tests.
-- The runner wraps this file in a transaction and sets user_version.

-- -- the house -------------------------------------------------------------------------------------

-- Tokens, consumers, webhooks and their dead letters: what belongs to the daemon and to no session. The store
-- keeps the bodies (JSON) without reading them; each is written in the transaction that tells of it.
CREATE TABLE house (
    kind TEXT NOT NULL,
    id   TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;

-- -- effects that somebody settled --------------------------------------------------------------------

ALTER TABLE effect ADD COLUMN effect_key TEXT;           -- for tools that take one
ALTER TABLE effect ADD COLUMN resolved_by TEXT;
ALTER TABLE effect ADD COLUMN resolved_ms INTEGER;
ALTER TABLE effect ADD COLUMN note TEXT;

CREATE INDEX effect_unknown ON effect (sid) WHERE outcome IN ('', 'uncertain');

-- In which way the boot derives states from events; 0 for those of before schema 2. See core/evolution.py.
ALTER TABLE boot ADD COLUMN derivation INTEGER NOT NULL DEFAULT 0;

-- -- recovery and anchors -----------------------------------------------------------------------------

CREATE TABLE recovery (
    boot  INTEGER PRIMARY KEY,          -- boot.n
    at_ms INTEGER NOT NULL,
    body  BLOB    NOT NULL              -- what this boot found and did, JSON
) STRICT;

CREATE TABLE anchor (
    seq       INTEGER PRIMARY KEY,
    h         BLOB    NOT NULL CHECK (length(h) = 32),
    at_ms     INTEGER NOT NULL,
    key_id    TEXT    NOT NULL,
    signature BLOB    NOT NULL
) STRICT;

-- -- retention ------------------------------------------------------------------------------------------

-- A month of the log that has ended. Its head hash is in the log itself (segment.sealed).
CREATE TABLE segment (
    n          INTEGER PRIMARY KEY,
    month      TEXT    NOT NULL,        -- 2026-11, UTC
    first_seq  INTEGER NOT NULL,
    last_seq   INTEGER NOT NULL CHECK (last_seq >= first_seq),
    first_ms   INTEGER NOT NULL,
    last_ms    INTEGER NOT NULL,
    prev_h     BLOB    NOT NULL CHECK (length(prev_h) = 32),
    head_h     BLOB    NOT NULL CHECK (length(head_h) = 32),
    sealed_ms  INTEGER NOT NULL,
    deleted_ms INTEGER                  -- its rows are gone, or are being deleted now
) STRICT;

-- Where the chain of a session goes on behind rows that were deleted with a segment.
CREATE TABLE session_link (
    sid      INTEGER NOT NULL,
    segment  INTEGER NOT NULL REFERENCES segment (n),
    first_ss INTEGER NOT NULL,
    last_ss  INTEGER NOT NULL CHECK (last_ss >= first_ss),
    prev_sh  BLOB    NOT NULL CHECK (length(prev_sh) = 32),
    sh       BLOB    NOT NULL CHECK (length(sh) = 32),
    PRIMARY KEY (sid, first_ss)
) STRICT, WITHOUT ROWID;

CREATE INDEX session_link_segment ON session_link (segment);

CREATE TABLE legal_hold (
    sid    INTEGER PRIMARY KEY REFERENCES session (num),
    since_ms INTEGER NOT NULL,
    by     TEXT    NOT NULL,
    reason TEXT    NOT NULL
) STRICT;

-- Content that was left standing below the level that is swept: of live contexts and held sessions.
CREATE TABLE content_kept (
    sid      INTEGER PRIMARY KEY,
    first_ss INTEGER NOT NULL,
    last_ss  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What the sweeper is at: it goes on here after a restart.
CREATE TABLE sweep (
    id         INTEGER PRIMARY KEY CHECK (id = 1),
    content_seq INTEGER NOT NULL,       -- content is gone through this seq, but for content_kept
    state      BLOB                     -- the range that is being worked on, JSON, or NULL
) STRICT;

INSERT INTO sweep (id, content_seq) VALUES (1, 0);

-- The blobs anew, with the moment of their last use in front of their content: a column behind it could only
-- be read through all of it.
CREATE TABLE blob_2 (
    id      INTEGER PRIMARY KEY,
    sha     BLOB    NOT NULL UNIQUE CHECK (length(sha) = 32),
    at_ms   INTEGER NOT NULL,           -- when it was stored first
    used_ms INTEGER NOT NULL,           -- when it was last handed in, to a day
    codec   TEXT    NOT NULL CHECK (codec IN ('raw', 'zlib')),
    len     INTEGER NOT NULL,           -- bytes before compression
    data    BLOB    NOT NULL
) STRICT;

INSERT INTO blob_2 (id, sha, at_ms, used_ms, codec, len, data)
SELECT id, sha, last.at_ms, last.at_ms, codec, len, data
FROM blob, (SELECT coalesce(max(at_ms), 0) AS at_ms FROM journal) AS last
ORDER BY id;

DROP TABLE blob;
ALTER TABLE blob_2 RENAME TO blob;
