-- Schema 3: sums for rows that no chain covers; what a copy of the log is called.
--
-- Stored answers and rows of the house follow from nothing else in the file, so only a sum of their own can
-- tell that a bit of them was changed. NULL in rows of before schema 3. See loopd/store/sums.py.
-- The runner wraps this file in a transaction and sets user_version.

ALTER TABLE idempotency ADD COLUMN sum BLOB CHECK (sum IS NULL OR length(sum) = 8);
ALTER TABLE house ADD COLUMN sum BLOB CHECK (sum IS NULL OR length(sum) = 8);

-- A snapshot that is started goes on as a log of its own: seq 100 is another event there than in the original.
-- The chain keeps the name it began with (meta.log_id); cursors get a new one.
ALTER TABLE meta ADD COLUMN copied INTEGER NOT NULL DEFAULT 0;  -- 1: a snapshot that was never started
ALTER TABLE boot ADD COLUMN log TEXT;                           -- what cursors call the log since this boot
